"""A batch job and its nodes as resources. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from gpuops.core.models import MACHINE, Resource, ResourceState
from provisioners.batch.login_node import LoginNode
from provisioners.ssh.host_agent import NodeRecord

JOB = "job"
NAME = re.compile(r"(?P<mark>gpuops-[0-9a-f]{8}-[a-z][a-z0-9-]*-job)\.(?P<token>[A-Za-z0-9-]+)")
"""What a job of ours is called: the mark and the token of its resource."""
END_MARGIN_S = 120.0
"""The lease ends this much before the job: the last snapshot, and results on their way, need the node."""


class JobState(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    OVER = "over"
    """It holds no machine any more, and will not."""


@dataclass(frozen=True)
class Job:
    """One job, as its batch system tells it now."""

    id: str
    mark: str
    token: str
    state: JobState
    nodes: int
    phase: str = ""
    """While it is queued, why and for how long, in words."""
    hopeless: str = ""
    """Why it will never run."""
    left_s: float | None = None
    """Seconds until it ends by itself."""
    why_over: str = ""
    preempted: bool = False
    failed: bool = False
    """A machine of it failed: on others it would have gone on."""

    @property
    def name(self) -> str:
        return job_name(self.mark, self.token)


def job_name(mark: str, token: str) -> str:
    return f"{mark}.{token}"


def output_file(login: LoginNode, name: str) -> str:
    """Where a job's own output is; the folder of agents is there whenever a node is."""
    return f"{login.root}/agent/{name}.out"


Inside = Callable[[Job, NodeRecord], Mapping[str, Sequence[str]]]
"""The commands on the login node that start a program on a machine of a job, by their names in `Resource.data`; its
second argument is the node, which is held."""


def job_resource(job: Job, login: LoginNode, ssh_folder: Path) -> Resource:
    return Resource(
        JOB,
        f"{login.name}/{job.id}",
        login.name,
        job.mark,
        bills=False,
        state=ResourceState.STARTING if job.state is JobState.QUEUED else ResourceState.RUNNING,
        data={**login.way(ssh_folder), "token": job.token, "machines": job.nodes, **_queued(job)},
    )


def _queued(job: Job) -> dict[str, Any]:
    """What `Resource.data` says of what waits for its turn."""
    waits = job.state is JobState.QUEUED
    return {"queued": True, "phase": job.phase, "hopeless": job.hopeless} if waits else {}


def node_resource(
    node: NodeRecord, job: Job | None, login: LoginNode, ssh_folder: Path, inside: Inside, now: float
) -> Resource:
    """A node, whose folder lies in the login node's home; `job`: its own, where its batch system knows it."""
    state, present = _present(node, job, inside, now)
    host = str(node.held or "") if state is ResourceState.RUNNING else ""
    return Resource(
        MACHINE,
        f"{login.name}:{node.folder}",
        login.name,
        node.mark,
        bills=False,
        parent=f"{login.name}/{job.id}" if job else "",
        state=state,
        address=host,
        data={
            **login.way(ssh_folder),
            "folder": node.folder,
            "gpus": node.gpus,
            "artefact": node.artefact,
            "token": node.token,
            **({"within": node.within} if node.within else {}),
            **present,
        },
    )


def _present(node: NodeRecord, job: Job | None, inside: Inside, now: float) -> tuple[ResourceState, dict[str, Any]]:
    """A node's state, and what `Resource.data` says of it besides."""
    if job is None or job.state is JobState.OVER:
        why = job.why_over if job else ""
        ended: dict[str, Any] = {"why_ended": why, "left": node.held is not None}
        ended |= {"reclaimed": True} if job and job.preempted else {}
        return ResourceState.ENDED, ended | ({"stopped": True} if job and job.failed else {})
    if job.state is JobState.QUEUED:
        return ResourceState.STARTING, _queued(job)
    if node.state is ResourceState.ENDED:
        return ResourceState.ENDED, {"left": True}
    if node.held is None:
        return ResourceState.STARTING, {"phase": "its job has begun"}
    ends = {} if job.left_s is None else {"ends": now + job.left_s - END_MARGIN_S}
    return ResourceState.RUNNING, {**inside(job, node), "inside_modes": ["connect"], **ends}


def job_of(node: NodeRecord, jobs: Sequence[Job]) -> Job | None:
    """The job that a node was made for: the one that still holds machines, of several."""
    own = [job for job in jobs if job.name == job_name_of(node)]
    return next((job for job in own if job.state is not JobState.OVER), own[-1] if own else None)


def job_name_of(node: NodeRecord) -> str:
    """What the job is called that a node was made for."""
    return job_name(f"{node.mark.rpartition('-')[0]}-job", job_token(node.token))


def job_token(node_token: str | None) -> str:
    """The token of a node's job: a node's is that with its number."""
    return (node_token or "").rpartition("-")[0]


def explain_output(text: str, login: str) -> str:
    """Why a job ended before its nodes were there, by the last line that it wrote. Pure."""
    lines = [line for line in text.splitlines() if line.strip()]
    if any("can't open file" in line for line in lines):
        return f"its machines do not see the home folder of {login}, which gpuops needs them to share"
    last = lines[-1].strip() if lines else ""
    try:
        return str(json.loads(last)["error"]["say"])
    except (ValueError, KeyError, TypeError):
        return last
