"""The contract for a batch system: a cluster is one job, whose machines hold a node each.

The nodes' folders are made in the login node's home before the job is submitted, and are removed once it is over: until
then every node is listed, whether its job waits, runs or has ended, and what a run has left can be brought home.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from gpuops.core.errors import (
    GpuopsError,
    NodeError,
    NodeRefused,
    ProviderError,
    Rejected,
    Unknown,
    UsageError,
)
from gpuops.core.models import MACHINE, Intent, Journal, Offer, Problem, Request, Resource, ResourceState, SiteFact
from gpuops.core.parallel import on_each
from provisioners.base import CONTRACT, Context
from provisioners.batch.jobs import (
    JOB,
    Job,
    JobState,
    explain_output,
    job_name,
    job_name_of,
    job_of,
    job_resource,
    job_token,
    node_resource,
    output_file,
)
from provisioners.batch.login_node import LoginNode, LoginNodes, parse_login
from provisioners.batch.request import JobShape
from provisioners.batch.survey import MODULES, modules_with_torch
from provisioners.ssh.container_spec import APPTAINER, check_image, within_words
from provisioners.ssh.host_agent import NodeRecord, join_lists
from provisioners.ssh.provisioner import ABANDONED_S, MIN_BOOT_LEASE_S, as_provider_errors

LOOK_VALID_S = 0.5
"""Nodes of one cluster are described one by one, and all by one look."""
QUEUE_S = 86400.0
"""How long a job may be queued without `--wait`."""
IDLE_MIN = 30.0
"""Others wait for what an idle job holds."""
LAST_LINES = 5


@dataclasses.dataclass(frozen=True)
class Submission:
    """What a job is to be."""

    name: str
    token: str
    """By which its machines know their nodes."""
    folder: str
    """The cluster's, in the login node's home: its nodes' folders are in it."""
    agent: str
    output: str
    data: Mapping[str, Any]
    """The offer's."""


@dataclasses.dataclass(frozen=True)
class Look:
    """What one look at a login node has shown."""

    jobs: Sequence[Job]
    resources: Sequence[Resource]
    """Jobs that hold machines or wait for them, then nodes."""


SiteT = TypeVar("SiteT")


class BatchProvisioner(ABC, Generic[SiteT]):
    """All but what a job is asked for with, and how its batch system is asked."""

    contract = CONTRACT
    name: str
    title: str
    """The batch system, as people call it."""
    program: str
    """A command of the batch system's, by which a login node is known."""
    prelude = ""
    grants_machines = True
    settle_s = 30.0
    gone_s = 120.0

    def __init__(self, context: Context) -> None:
        self.context = context
        self.logins = LoginNodes(context, self.name, self.program, self.prelude)
        self._sites: dict[str, SiteT] = {}
        self._site_lock = threading.Lock()
        self._looks: dict[str, tuple[float, Look]] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def ask_site(self, login: LoginNode) -> SiteT:
        """What the cluster has. Raises NotSetUp, Unknown, NodeError."""

    @abstractmethod
    def check(self, request: Request) -> None:
        """Raises UsageError for a request that makes no sense anywhere."""

    @abstractmethod
    def shape(self, request: Request, site: SiteT) -> JobShape:
        """What a job is to ask for. Raises UsageError, ProviderError."""

    def try_out(self, login: LoginNode, request: Request, shape: JobShape) -> None:
        """Ask whether the job would be taken, where that can be asked. Raises ProviderError."""

    def more_data(self, login: LoginNode, shape: JobShape) -> Mapping[str, Any]:
        """What `Submission.data` needs of its batch system besides."""
        return {}

    def survey_cluster(self, login: LoginNode) -> Sequence[SiteFact]:
        """What the cluster has and allows, for `doctor`, where that can be asked. Raises ProviderError, NodeError."""
        return []

    @abstractmethod
    def submit(self, login: LoginNode, submission: Submission) -> str:
        """Submit a job. Returns its number. Raises ProviderError, NodeError."""

    @abstractmethod
    def list_jobs(self, login: LoginNode) -> Sequence[Job]:
        """This owner's jobs, those that ended a while ago too, where they are still known. Raises ProviderError."""

    def list_past_jobs(self, login: LoginNode, names: Collection[str]) -> Sequence[Job]:
        """Those of these jobs that `list_jobs` knows no more, where something else does; it never fails for that.
        Raises NodeError."""
        return []

    @abstractmethod
    def cancel(self, login: LoginNode, names: Sequence[str]) -> None:
        """End jobs by their names; gone already is success. Raises ProviderError."""

    @abstractmethod
    def inside(self, login: LoginNode, job: Job, node: NodeRecord) -> Mapping[str, Sequence[str]]:
        """The commands on the login node that start a program on a machine of a job: see `jobs.Inside`."""

    # Before anything is made.

    def preflight(self, request: Request) -> Sequence[Problem]:
        self.check(request)
        if request.image is not None:
            check_image(request.image, APPTAINER)
        if problem := self.logins.problem(request):
            return [problem]
        try:
            login = self.logins.log_in(request)
            self.try_out(login, request, self.shape(request, self.site(login)))
        except UsageError:
            raise
        except GpuopsError as error:
            return [Problem(error.message, error.hint)]
        return []

    def survey(self, request: Request) -> Sequence[SiteFact]:
        login = self.logins.log_in(request)
        return [*self.survey_cluster(login), *modules_with_torch(self.logins.ask(login, ["sh", "-c", MODULES]).text)]

    def offers(self, request: Request) -> Sequence[Offer]:
        """One offer: this job."""
        login = self.logins.log_in(request)
        shape = self.shape(request, self.site(login))
        image = check_image(request.image, APPTAINER) if request.image is not None else None
        data = {
            "login": login.document(),
            "within": within_words(image, login.root, gpus=shape.gpus > 0) if image else None,
            "queue_s": QUEUE_S if request.wait_s is None else request.wait_s,
            "idle_min": IDLE_MIN,
            "walltime_s": shape.walltime_s,
            "by": self.title,
            "words": list(shape.words),
            **self.more_data(login, shape),
        }
        return [Offer(self.name, shape.queue, shape.say, request.nodes, shape.gpus, data=data)]

    def site(self, login: LoginNode) -> SiteT:
        """What the cluster has, asked once for a command. Raises NotSetUp, Unknown, NodeError."""
        with self._site_lock:
            if login.name not in self._sites:
                self._sites[login.name] = self.ask_site(login)
            return self._sites[login.name]

    # Making.

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        login = parse_login(offer.data["login"])
        name = job_name(intent.mark("job"), intent.token)
        journal.will(JOB, intent.mark("job"), intent.token, login.name)
        for index in range(offer.nodes):
            journal.will(MACHINE, intent.mark(index), f"{intent.token}-{index}", login.name)
        self.logins.record(login)
        folder = f"{login.root}/{intent.cluster}"
        agent = as_provider_errors(lambda: self._install(login, folder, offer, intent))
        submission = Submission(name, intent.token, folder, agent, output_file(login, name), offer.data)
        number = as_provider_errors(lambda: self.submit(login, submission))
        job = Job(number, intent.mark("job"), intent.token, JobState.QUEUED, offer.nodes)
        journal.got(job_resource(job, login, self.logins.ssh_folder))
        machines = [
            self._node(
                _record(intent, index, folder, offer.data.get("within")), job, login
            )  # it is found there by the next look
            for index in range(offer.nodes)
        ]
        for machine in machines:
            journal.got(machine)
        self._forget_look(login.name)
        return [job_resource(job, login, self.logins.ssh_folder), *machines]

    def _install(self, login: LoginNode, folder: str, offer: Offer, intent: Intent) -> str:
        """Bring the agent and make the nodes' folders. Returns the agent's path."""
        from gpuops.nodes import bootstrap

        agent = self.logins.agent(login).install(intent.agent)
        boot_in = intent.boot_deadline - self.context.clock.now() - offer.queue_s
        job = {
            "by": str(offer.data.get("by") or self.name),
            "boot_in": max(MIN_BOOT_LEASE_S, boot_in),
            "ends_in": offer.data["walltime_s"],
            "kill_wait_s": offer.data.get("kill_wait_s"),
            "gpus": offer.data.get("untold_gpus"),
            "apart": bool(offer.data.get("apart")),
        }
        nodes = [
            {
                "cluster": intent.cluster,
                "owner": intent.owner,
                "index": index,
                "mark": intent.mark(index),
                "token": f"{intent.token}-{index}",
                "end": None,
                "artefact": intent.agent.stem,
                "host": f"{self.name}/{login.name}",
                "job": job,
                "within": offer.data.get("within"),
            }
            for index in range(offer.nodes)
        ]
        words = [login.python, "-I", agent, "hold", "--cluster", folder, "--prepare"]
        bootstrap.call_agent_mode(self.logins.connection(login), words, json.dumps({"nodes": nodes}).encode())
        return agent

    # Finding.

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        """Every job and every node folder of this owner's, at these login nodes or at all that are known."""
        logins = as_provider_errors(lambda: self.logins.known(regions))

        def look(login: LoginNode) -> Sequence[Resource] | ProviderError:
            try:
                self._forget_look(login.name)
                found = self._look(login).resources
                if not found:
                    self._tidy(login)
            except ProviderError as error:
                return error
            return found

        return join_lists(on_each(look, logins))

    def describe(self, resource: Resource) -> Resource:
        found = self._look(self.logins.of(resource)).resources
        ended = dataclasses.replace(resource, state=ResourceState.ENDED)
        return next((one for one in found if one.key == resource.key), ended)

    def last_words(self, resource: Resource) -> str:
        """The last lines that a node's job has written by itself."""
        login = self.logins.of(resource)
        file = output_file(login, _job_name(resource))
        answer = as_provider_errors(lambda: self.logins.ask(login, ["tail", "-n", str(LAST_LINES), file]))
        return "" if answer.code else answer.text.strip()

    def _look(self, login: LoginNode) -> Look:
        """Jobs first: what is listed of nodes is as new as they are. Raises ProviderError."""
        with self._lock:
            turn = self._turns.setdefault(login.name, threading.Lock())
        with turn:
            at, look = self._looks.get(login.name, (0.0, None))
            if look is None or self.context.clock.monotonic() - at > LOOK_VALID_S:
                look = self._look_anew(login)
                self._looks[login.name] = (self.context.clock.monotonic(), look)
            return look

    def _look_anew(self, login: LoginNode) -> Look:
        jobs = as_provider_errors(lambda: self.list_jobs(login))
        try:
            nodes = self.logins.agent(login).list_nodes(f"{self.name}/{login.name}")
        except NodeRefused as error:
            raise Rejected(error.message, error.hint) from error
        except NodeError as error:
            hint = f"{error.hint or 'see what is wrong there'}; gone for good? gpuops reap --forget {login.name}"
            raise Unknown(error.message, hint) from error
        if forgotten := {name for node in nodes if job_of(node, jobs) is None and (name := job_name_of(node))}:
            jobs = [*jobs, *as_provider_errors(lambda: self.list_past_jobs(login, forgotten))]
        active = [job for job in jobs if job.state is not JobState.OVER]
        return Look(
            jobs,
            [
                *(job_resource(job, login, self.logins.ssh_folder) for job in active),
                *(self._explained(self._node(node, job_of(node, jobs), login), node) for node in nodes),
            ],
        )

    def _node(self, node: NodeRecord, job: Job | None, login: LoginNode) -> Resource:
        return node_resource(
            node, job, login, self.logins.ssh_folder, partial(self.inside, login), self.context.clock.now()
        )

    def _explained(self, machine: Resource, node: NodeRecord) -> Resource:
        """With what its job said, where it ended before the node was there."""
        if machine.state != ResourceState.ENDED or node.held is not None:
            return machine
        said = ""
        with suppress(ProviderError):
            said = explain_output(self.last_words(machine), machine.region)
        why = "; ".join(filter(None, [str(machine.data.get("why_ended") or ""), said]))
        return dataclasses.replace(machine, data={**machine.data, "why_ended": why})

    def _forget_look(self, name: str) -> None:
        self._looks.pop(name, None)

    # Ending.

    def destroy(self, resources: Sequence[Resource]) -> None:
        """Jobs are ended at once; a node's folder goes once its job is over."""
        logins = {resource.region: self.logins.of(resource) for resource in resources}

        def end(region: str) -> ProviderError | None:
            try:
                here = [resource for resource in resources if resource.region == region]
                as_provider_errors(lambda: self._end(logins[region], here))
            except ProviderError as error:
                return error
            finally:
                self._forget_look(region)
            return None

        if errors := [error for error in on_each(end, list(logins)) if error]:
            raise errors[0]

    def _end(self, login: LoginNode, resources: Sequence[Resource]) -> None:
        known = self.logins.book.get(login.name)
        active = {job.name for job in self.list_jobs(login) if job.state is not JobState.OVER}
        if names := sorted(active & {_job_name(resource) for resource in resources}):
            self.cancel(login, names)
        over = [resource for resource in resources if resource.is_machine and _job_name(resource) not in active]
        for resource in over:
            self.logins.ask(login, ["rm", "-f", output_file(login, _job_name(resource))])
            self.logins.agent(login).end_node(f"{self.name}/{login.name}", str(resource.data["folder"]), resource.token)
        if over and known is not None and not self._look_anew(login).resources:
            self.logins.book.remove_unchanged(login.name, known)

    def _tidy(self, login: LoginNode) -> None:
        """Remove what a crashed command has left where nothing of ours is."""
        from gpuops.nodes import bootstrap

        known = self.logins.book.get(login.name)
        if known is not None and self.context.clock.now() - known.written_at > ABANDONED_S:
            with suppress(GpuopsError):  # it stays in the book, and the next list tries again
                bootstrap.remove_agent(self.logins.connection(login), login.root)
                self.logins.book.remove_unchanged(login.name, known)

    def forget(self, region: str) -> bool:
        """A login node is gone for good, or was set up anew. Until then the key that was accepted for it stays so."""
        was_accepted = self.logins.accepted.forget(region)
        return self.logins.book.remove(region) or was_accepted

    def self_destruct(self, resource: Resource) -> Sequence[str] | None:
        """The last machine's `hold` ends the job with itself."""
        return None


def _record(intent: Intent, index: int, folder: str, within: Sequence[str] | None) -> NodeRecord:
    return NodeRecord(
        intent.mark(index),
        f"{folder}/n{index}",
        ResourceState.STARTING,
        artefact=intent.agent.stem,
        token=f"{intent.token}-{index}",
        within=within,
    )


def _job_name(resource: Resource) -> str:
    """What a job, or that of a node, is called."""
    if resource.kind == JOB:
        return job_name(resource.name, resource.token)
    return job_name(f"{resource.name.rpartition('-')[0]}-job", job_token(resource.token))
