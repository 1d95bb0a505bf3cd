"""Slurm as a provisioner: see provisioners.batch.provisioner; here is what Slurm alone is asked."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence

from gpuops.core.account_variables import OURS
from gpuops.core.errors import GpuopsError, NotSetUp, ProviderError, Rejected, Unknown, UsageError
from gpuops.core.models import Offer, Option, Problem, Request
from provisioners.base import Context
from provisioners.batch.jobs import Job
from provisioners.batch.login_node import Answer, LoginNode
from provisioners.batch.provisioner import BatchProvisioner, Submission
from provisioners.slurm import commands, options
from provisioners.slurm.options import Wishes
from provisioners.slurm.site import NO_CONTROLLER, JobShape, Site, explain_refusal, parse_site, shape_job

JOB_ID = re.compile(r"^(\d+)(?:;\S*)?$", re.MULTILINE)
"""`--parsable` adds the name of the cluster where there are several."""


class SlurmProvisioner(BatchProvisioner):
    name = "slurm"
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
    credentials: Sequence[str] = OURS["slurm"].credentials
    surroundings: Sequence[str] = OURS["slurm"].surroundings

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sites: dict[str, Site] = {}
        self._site_lock = threading.Lock()

    # Before anything is made.

    def preflight(self, request: Request) -> Sequence[Problem]:
        wishes = options.parse_wishes(request)
        if problem := self.logins.problem(request):
            return [problem]
        try:
            login = self.logins.log_in(request)
            shape = shape_job(wishes, self._site(login))
            self._test(login, wishes, shape)
        except UsageError:
            raise
        except GpuopsError as error:
            return [Problem(error.message, error.hint)]
        return []

    def offers(self, request: Request) -> Sequence[Offer]:
        """One offer: this job."""
        login = self.logins.log_in(request)
        site = self._site(login)
        shape = shape_job(options.parse_wishes(request), site)
        data = {
            **self.offer_data(request, login, shape.walltime_s),
            "by": "Slurm",
            "sbatch": list(shape.sbatch),
            "cpus": shape.cpus,
            "kill_wait_s": site.kill_wait_s,
        }
        return [Offer(self.name, shape.partition, shape.say, request.nodes, shape.gpus, data=data)]

    def _site(self, login: LoginNode) -> Site:
        """What the cluster has, asked once for a command. Raises NotSetUp, Unknown, NodeError."""
        with self._site_lock:
            if login.name not in self._sites:
                answer = self.logins.ask(login, ["sh", "-c", commands.SITE])
                if answer.text.strip() == "absent":
                    where = "on this machine" if login.target is None else f"on {login.name}"
                    raise NotSetUp(f"there is no sbatch {where}", "name the cluster's login node: --host user@address")
                if answer.code:
                    raise Unknown(
                        f"Slurm does not answer: {answer.last_line}", "try again, or ask who runs the cluster"
                    )
                self._sites[login.name] = parse_site(answer.text)
            return self._sites[login.name]

    def _test(self, login: LoginNode, wishes: Wishes, shape: JobShape) -> None:
        """Ask Slurm whether it would take the job. Raises ProviderError."""
        answer = self.logins.ask(login, ["sbatch", "--test-only", *shape.sbatch, "--wrap=true"])
        if answer.code:
            raise self._refusal(login, answer, wishes)

    def _refusal(self, login: LoginNode, answer: Answer, wishes: Wishes) -> ProviderError:
        said = answer.text.lower()
        asks = "account" in said or "qos" in said
        known = self.logins.ask(login, ["sh", "-c", commands.ASSOCIATIONS]).text if asks else ""
        return explain_refusal(answer.text, wishes, self._site(login), known)

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

    def cancel(self, login: LoginNode, names: Sequence[str]) -> None:
        for name in names:
            answer = self.logins.ask(login, ["scancel", f"--name={name}"])
            if answer.code:
                raise Unknown(f"Slurm did not cancel {name}: {answer.last_line}", "try again in a minute")

    def inside(self, job: Job, host: str) -> Mapping[str, Sequence[str]]:
        shell = commands.shell_words(job.id, host)
        return {
            "inside": self.logins.words(commands.step_words(job.id, host)),
            "inside_shell": self.logins.words(shell),
            "inside_terminal": self.logins.words([*shell, "--pty"]),
        }
