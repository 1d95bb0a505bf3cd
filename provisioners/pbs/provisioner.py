"""PBS as a provisioner: see provisioners.batch.provisioner; here is what PBS alone is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.core.account_variables import OURS
from gpuops.core.errors import Unknown
from gpuops.core.models import Option, Request, SiteFact
from provisioners.batch.jobs import Job
from provisioners.batch.login_node import LoginNode
from provisioners.batch.provisioner import BatchProvisioner, Submission
from provisioners.batch.request import JobShape
from provisioners.pbs import commands, options
from provisioners.pbs.site import Site, explain_refusal, parse_site, shape_job
from provisioners.pbs.survey import parse_person, survey_site
from provisioners.ssh.host_agent import NodeRecord

JOB_ID = re.compile(r"^(\d+\.\S+)$", re.MULTILINE)


class PbsProvisioner(BatchProvisioner[Site]):
    name = "pbs"
    title = "PBS"
    program = "qsub"
    prelude = commands.PRELUDE
    capabilities: Mapping[str, bool | str] = {
        "multinode": True,
        "spot": "a PBS cluster has no spot price; --queue may name one whose jobs can be preempted",
        "self_destruct": True,
        "host_keys": True,
        "rented": "a PBS cluster costs no money here",
        "shares_disk": "the cluster's home is not this computer's",
    }
    options: Sequence[Option] = options.OPTIONS
    examples: Sequence[str] = (
        "--host login.hpc.example --gpus 1 --max-hours 1",
        "--host login.hpc.example --nodes 2 --gpus 4 --max-hours 4",
    )
    credentials: Sequence[str] = OURS["pbs"].credentials
    surroundings: Sequence[str] = OURS["pbs"].surroundings

    # Before anything is made.

    def ask_site(self, login: LoginNode) -> Site:
        text = self.logins.ask_site(login, commands.SITE, self.title)
        try:
            return parse_site(text)
        except ValueError as error:
            raise Unknown(f"what PBS tells of itself is no JSON: {error}", "it needs OpenPBS or PBS Pro 18") from error

    def check(self, request: Request) -> None:
        options.parse_wishes(request)

    def shape(self, request: Request, site: Site) -> JobShape:
        return shape_job(options.parse_wishes(request), site)

    def more_data(self, login: LoginNode, shape: JobShape) -> Mapping[str, Any]:
        queue = next(queue for queue in self.site(login).queues if queue.name == shape.queue)
        return {"kill_wait_s": queue.kill_delay_s, "untold_gpus": shape.gpus, "nodes": shape.nodes}

    def survey_cluster(self, login: LoginNode) -> Sequence[SiteFact]:
        return survey_site(self.site(login), parse_person(self.logins.ask(login, ["sh", "-c", commands.WHO]).text))

    # What a batch system does.

    def submit(self, login: LoginNode, submission: Submission) -> str:
        script = commands.job_script(submission, login.python, submission.data["nodes"])
        answer = self.logins.ask(login, commands.qsub_words(submission), script)
        if answer.code:
            raise explain_refusal(answer.text, self.site(login))
        match = JOB_ID.search(answer.text)
        if match is None:
            raise Unknown(f"qsub gave no number of a job: {answer.last_line}", "try again")
        return match[1]

    def list_jobs(self, login: LoginNode) -> Sequence[Job]:
        answer = self.logins.ask(login, ["sh", "-c", commands.JOBS])
        if answer.code:
            raise Unknown(f"PBS does not list its jobs: {answer.last_line}", "try again in a minute")
        return commands.parse_jobs(answer.text, f"gpuops-{self.context.owner}-", self.context.clock.now())

    def cancel(self, login: LoginNode, names: Sequence[str]) -> None:
        for name in names:
            answer = self.logins.ask(login, ["sh", "-c", commands.CANCEL, "sh", name])
            if answer.code and not commands.GONE.search(answer.text):
                raise Unknown(f"PBS did not delete {name}: {answer.last_line}", "try again in a minute")

    def inside(self, login: LoginNode, job: Job, node: NodeRecord) -> Mapping[str, Sequence[str]]:
        host = str(node.held)

        def shell(terminal: bool) -> list[str]:
            return self.logins.words(commands.shell_words(job.id, login.python, host, node.gpus, terminal))

        return {
            "inside": self.logins.words(commands.step_words(job.id, login.python, host)),
            "inside_shell": shell(False),
            "inside_terminal": shell(True),
            "inside_forward": self.logins.words(commands.forward_words(host)),
        }
