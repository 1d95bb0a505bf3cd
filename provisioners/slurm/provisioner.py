"""Slurm as a provisioner: see provisioners.batch.provisioner; here is what Slurm alone is asked."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpuops.core.account_variables import OURS
from gpuops.core.errors import Rejected, Unknown
from gpuops.core.models import Option, Request, SiteFact
from provisioners.batch.jobs import Job
from provisioners.batch.login_node import LoginNode
from provisioners.batch.provisioner import BatchProvisioner, Submission
from provisioners.batch.request import JobShape
from provisioners.slurm import commands, options
from provisioners.slurm.limits import Limits, parse_limits, refuse_excess
from provisioners.slurm.site import NO_CONTROLLER, Site, explain_refusal, is_limit_refusal, parse_site, shape_job
from provisioners.slurm.survey import survey_site
from provisioners.ssh.host_agent import NodeRecord

JOB_ID = re.compile(r"^(\d+)(?:;\S*)?$", re.MULTILINE)
"""`--parsable` adds the name of the cluster where there are several."""

PAST_S = 30 * 86400.0
"""How long ago a job may have ended whose end is still asked for."""


class SlurmProvisioner(BatchProvisioner[Site]):
    name = "slurm"
    title = "Slurm"
    program = "squeue"
    prelude = commands.PRELUDE
    capabilities: Mapping[str, bool | str] = {
        "multinode": True,
        "spot": "a Slurm cluster has no spot price; --qos or --partition may name what can be preempted",
        "self_destruct": True,
        "host_keys": True,
        "rented": "a Slurm cluster costs no money here",
        "shares_disk": "the cluster's home is not this computer's",
    }
    options: Sequence[Option] = options.OPTIONS
    examples: Sequence[str] = (
        "--host login.hpc.example --gpus 1 --max-hours 1",
        "--host login.hpc.example --nodes 2 --gpus 4 --max-hours 4",
    )
    credentials: Sequence[str] = OURS["slurm"].credentials
    surroundings: Sequence[str] = OURS["slurm"].surroundings

    # Before anything is made.

    def ask_site(self, login: LoginNode) -> Site:
        return parse_site(self.logins.ask_site(login, commands.SITE, self.title))

    def check(self, request: Request) -> None:
        options.parse_wishes(request)

    def shape(self, request: Request, site: Site) -> JobShape:
        return shape_job(options.parse_wishes(request), site)

    def more_data(self, login: LoginNode, shape: JobShape) -> Mapping[str, Any]:
        site = self.site(login)
        return {"cpus": shape.cpus, "kill_wait_s": site.kill_wait_s, "apart": site.signals_descendants}

    def try_out(self, login: LoginNode, request: Request, shape: JobShape) -> None:
        """Slurm takes a job that asks for more than its account may ever have, and lets it wait."""
        wishes, site = options.parse_wishes(request), self.site(login)
        answer = self.logins.ask(login, ["sbatch", "--test-only", *shape.words, "--wrap=true"])
        if site.enforces_limits and (not answer.code or is_limit_refusal(answer.text)):
            refuse_excess(self._limits(login), wishes, shape, site.partition_of(wishes))
        if answer.code:
            asks = any(word in answer.text.lower() for word in ("invalid account", "invalid qos"))
            raise explain_refusal(answer.text, wishes, site, self._limits(login) if asks else None)

    def _limits(self, login: LoginNode) -> Limits:
        words = ["sh", "-c", commands.LIMITS, "sh", self.site(login).cluster]
        return parse_limits(self.logins.ask(login, words).text)

    def survey_cluster(self, login: LoginNode) -> Sequence[SiteFact]:
        said = self.logins.ask(login, ["sh", "-c", commands.SURVEY]).text
        return survey_site(self.site(login), said, self._limits(login))

    # What a batch system does.

    def submit(self, login: LoginNode, submission: Submission) -> str:
        script = commands.job_script(submission, login.python)
        answer = self.logins.ask(login, commands.sbatch_words(submission), script)
        if answer.code:
            if any(sign.lower() in answer.text.lower() for sign in NO_CONTROLLER):
                raise Unknown(f"Slurm's controller did not answer: {answer.last_line}", "try again in a minute")
            raise Rejected(f"sbatch refuses: {answer.last_line}", "change the request")
        match = JOB_ID.search(answer.text)
        if match is None:
            raise Unknown(f"sbatch gave no number of a job: {answer.last_line}", "try again")
        return match[1]

    def list_jobs(self, login: LoginNode) -> Sequence[Job]:
        answer = self.logins.ask(login, ["sh", "-c", commands.JOBS])
        if answer.code:
            raise Unknown(f"Slurm does not list its jobs: {answer.last_line}", "try again in a minute")
        return commands.parse_jobs(answer.text, f"gpuops-{self.context.owner}-", self.context.clock.now())

    def list_past_jobs(self, login: LoginNode, names: Collection[str]) -> Sequence[Job]:
        since = time.strftime("%Y-%m-%d", time.gmtime(self.context.clock.now() - PAST_S))
        answer = self.logins.ask(login, ["sh", "-c", commands.PAST, "sh", since, ",".join(sorted(names))])
        return commands.parse_past_jobs(answer.text, names)

    def cancel(self, login: LoginNode, names: Sequence[str]) -> None:
        for name in names:
            answer = self.logins.ask(login, ["scancel", f"--name={name}"])
            if answer.code:
                raise Unknown(f"Slurm did not cancel {name}: {answer.last_line}", "try again in a minute")

    def inside(self, login: LoginNode, job: Job, node: NodeRecord) -> Mapping[str, Sequence[str]]:
        host = str(node.held)
        shell, agent = commands.shell_words(job.id, host), f"{login.root}/agent/{node.artefact}.pyz"
        return {
            "inside": self.logins.words(commands.step_words(job.id, host)),
            "inside_shell": self.logins.words(shell),
            "inside_terminal": self.logins.words([*shell, "--pty"]),
            "inside_forward": self.logins.words(commands.forward_words(job.id, host, login.python, agent)),
        }
