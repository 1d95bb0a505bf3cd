"""Pods and clusters as RunPod describes them, parsed into types. Pure.

What a pod's environment holds of ours is given back in every answer, so that a pod whose creation was not answered is
known by it. What an answer lacks, or has with another type, counts as not said: empty, 0 or None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from provisioners.kit.boot_watch import TOKEN
from provisioners.kit.documents import Document, entries, inner, number, objects
from provisioners.kit.ssh_machine import is_behind_carrier

# Variables in a pod's environment.
MARK = "GPUOPS_MARK"
"""What the names of all parts of a cluster begin with."""
VOLUME = "GPUOPS_VOLUME"
"""The name of the network volume; RunPod's answer has its id only."""

SSH_PORT = 22
MAX_PORT = 65535


class Status(Enum):
    """RunPod's own words for what a pod is at."""

    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    """It stands still: stopped by its host's failure or for want of money, since RunPod starts a container that ends by
    itself again."""
    ERROR = "ERROR"
    TERMINATED = "TERMINATED"
    OTHER = ""
    """A word that is not documented."""

    @classmethod
    def _missing_(cls, _: object) -> Status:
        return cls.OTHER


@dataclass(frozen=True)
class Membership:
    """A pod's place in a cluster."""

    cluster: str
    """The cluster's id."""
    rank: int | None
    """None while RunPod has not numbered its pods."""
    address: str
    """Where the other members reach it."""


@dataclass(frozen=True)
class Pod:
    """One pod, as RunPod describes it."""

    id: str
    name: str
    status: Status
    status_word: str
    """The status as RunPod spells it."""
    has_runtime: bool
    """Whether its container runs: its image is there."""
    host: str
    """Where its SSH port is mapped to; empty while it is not."""
    port: int
    carrier_address: str
    """The address behind a carrier's translation by which its SSH port would be reached; empty where there is none."""
    env: Mapping[str, str]
    membership: Membership | None
    gpu: str
    gpu_count: int
    """0 where RunPod does not say."""
    center: str
    cloud: str
    image: str
    cuda: str
    cost: float
    """$/h with its disk; 0 where RunPod does not say."""
    disk: float
    """GB."""
    volumes: Mapping[str, str]
    """Where its network volumes are mounted, by id."""
    http_ports: tuple[str, ...]

    @property
    def cluster(self) -> str:
        """The id of the cluster that it is in; empty for a pod on its own."""
        return self.membership.cluster if self.membership else ""

    @property
    def rank(self) -> int | None:
        return self.membership.rank if self.membership else None

    @property
    def kind(self) -> str:
        """`member` for a pod of a cluster that is not numbered yet."""
        return "member" if self.cluster and self.rank is None else "machine"

    @property
    def is_coming(self) -> bool:
        """Whether it is on its way up, or runs."""
        return self.status in (Status.PROVISIONING, Status.STARTING, Status.RUNNING)

    @property
    def endpoint(self) -> tuple[str, int]:
        """Where its sshd is reached from everywhere; ("", 0) while it is not."""
        running = self.status is Status.RUNNING and self.has_runtime
        public = running and self.host and self.port and not is_behind_carrier(self.host)
        return (self.host, self.port) if public else ("", 0)

    @property
    def urls(self) -> list[str]:
        """Where RunPod's proxy shows its `http` ports."""
        return [f"https://{self.id}-{port}.proxy.runpod.net" for port in self.http_ports]

    @property
    def token(self) -> str:
        """The token of its own `will`. Members of a cluster share one, and the rank makes it a member's own."""
        shared = self.env.get(TOKEN, "")
        return f"{shared}-{self.rank}" if shared and self.rank is not None else shared

    def with_env(self, env: Mapping[str, str]) -> Pod:
        """A pod that was just made, whose answer may hold only a part of its environment."""
        return dataclasses.replace(self, env={**env, **self.env})


@dataclass(frozen=True)
class Cluster:
    """An Instant Cluster."""

    id: str
    name: str
    center: str
    pod_count: int
    """0 where RunPod does not say."""


def parse_pod(document: Document) -> Pod:
    """A pod of an answer that has an `id`."""
    word = str(document.get("status") or "")
    gpu = inner(document, "gpu")
    host, port = _mapped_ssh(document)
    return Pod(
        id=str(document["id"]),
        name=str(document.get("name") or ""),
        status=Status(word.upper()),
        status_word=word,
        has_runtime=bool(document.get("runtime")),
        host=host,
        port=port,
        carrier_address=_carrier_address(document, host),
        env={str(name): str(value or "") for name, value in inner(document, "env").items()},
        membership=_membership(document),
        gpu=str(gpu.get("id") or ""),
        gpu_count=int(number(gpu.get("count"))),
        center=str(document.get("dataCenterId") or ""),
        cloud=str(document.get("cloud") or ""),
        image=str(document.get("image") or ""),
        cuda=str(document.get("cudaVersion") or ""),
        cost=number(document.get("cost")),
        disk=number(document.get("disk")),
        volumes={
            str(mount["volumeId"]): str(mount["path"])
            for mount in objects(inner(document, "mounts"), "network")
            if {"volumeId", "path"} <= set(mount)
        },
        http_ports=tuple(
            port
            for port, _, protocol in (str(entry).partition("/") for entry in entries(document, "ports"))
            if protocol == "http"
        ),
    )


def _membership(document: Document) -> Membership | None:
    cluster = inner(document, "cluster")
    if not cluster:
        return None
    rank = cluster.get("rank")
    is_numbered = isinstance(rank, int) and not isinstance(rank, bool)
    return Membership(str(cluster.get("id") or ""), rank if is_numbered else None, str(cluster.get("ip") or ""))


def parse_cluster(document: Document) -> Cluster:
    """A cluster of an answer that has an `id`."""
    return Cluster(
        id=str(document["id"]),
        name=str(document.get("name") or ""),
        center=str(document.get("dataCenterId") or ""),
        pod_count=int(number(inner(document, "compute").get("podCount"))),
    )


def _mapped_ssh(document: Document) -> tuple[str, int]:
    direct = inner(inner(document, "ssh"), "direct")
    port = direct.get("port")
    return str(direct.get("host") or ""), port if isinstance(port, int) and 0 < port <= MAX_PORT else 0


def _carrier_address(document: Document, host: str) -> str:
    """Ports of type `http` go through RunPod's proxy and always have such an address, so they do not count."""
    mapped = [
        str(port.get("ip") or "")
        for port in objects(inner(document, "runtime"), "ports")
        if port.get("private") == SSH_PORT and port.get("type", "tcp") == "tcp"
    ]
    return next((address for address in (host, *mapped) if is_behind_carrier(address)), "")
