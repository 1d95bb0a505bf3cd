"""Pods and clusters as RunPod describes them, and as our `Resource`. Pure.

What a pod's environment holds of ours is given back in every answer, so that a pod whose creation was not answered is
known by it. What an answer lacks, or has with another type, counts as not said: empty, 0 or None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gpuops.core.models import MACHINE, Resource, ResourceState
from provisioners.base import NOTHING
from provisioners.kit import container_boot
from provisioners.kit.documents import Document, entries, inner, number, objects
from provisioners.kit.ssh_machine import Login, Machine, endpoint, is_behind_carrier
from provisioners.runpod.launch import MARK, VOLUME
from provisioners.runpod.offers import disk_price
from provisioners.runpod.regions import REGION

CLUSTER = "cluster"
"""Kind of a resource that is a cluster, and the last part of its name."""
CLUSTER_NAME = re.compile(rf"(gpuops-.+-){CLUSTER}(-.*)?")
"""`gpuops-0a1b2c3d-lab-cluster`, or a member's name that RunPod makes of it."""
MEMBER = "member"
"""Kind of a cluster's pod while RunPod has not numbered it."""
EXITED = "its container has ended, and RunPod has stopped the pod"
BROKEN = "RunPod says that it is in an error it does not come out of"
SSH_PORT = 22


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
class Pod(Machine):
    """A pod; its `parent` is the cluster that it is in."""

    status: Status = Status.OTHER
    rank: int | None = None
    """Its place in the cluster; None while RunPod has not numbered its pods."""
    mark: str = ""
    """What the names of all parts of its cluster begin with, as its environment tells."""
    carrier_address: str = ""
    """The address behind a carrier's translation by which its SSH port would be reached; empty where there is none."""

    @property
    def is_coming(self) -> bool:
        """Whether it is on its way up, or runs."""
        return self.status in (Status.PROVISIONING, Status.STARTING, Status.RUNNING)


@dataclass(frozen=True)
class Cluster:
    """An Instant Cluster."""

    id: str
    name: str
    center: str
    pod_count: int
    """0 where RunPod does not say."""


def parse_pod(document: Document, parent: str = "", kept: Mapping[str, Any] = NOTHING, price: float = 0.0) -> Pod:
    """A pod of an answer that has an `id`.

    parent  its cluster's id, where that is known already
    kept    its data, as the ledger has it
    price   $/h while RunPod says none
    """
    word = str(document.get("status") or "")
    env = {str(name): str(value or "") for name, value in inner(document, "env").items()}
    cluster, gpu, status = inner(document, "cluster"), inner(document, "gpu"), Status(word.upper())
    parent, rank = parent or str(cluster.get("id") or ""), _rank(cluster)
    carrier_address, endpoint = _carrier_address(document), _endpoint(document, status)
    state, phase, hopeless = _standing(document, status, carrier_address, is_reachable=bool(endpoint[0]))
    token, offered = env.get(container_boot.TOKEN, ""), float(price or kept.get("offered") or 0.0)
    if token and rank is not None:  # members share one, and the rank makes it their own
        token = f"{token}-{rank}"
    ports = [str(port).partition("/") for port in entries(document, "ports")]
    return Pod(
        id=str(document["id"]),
        name=str(document.get("name") or ""),
        region=REGION,
        state=state,
        login=Login("root", *endpoint, env.get(container_boot.HOST_PUBLIC, "")),
        token=token,
        per_hour=_per_hour(document, status, offered),
        private_address=str(cluster.get("ip") or ""),
        kind=MEMBER if parent and rank is None else MACHINE,
        parent=parent,
        status=status,
        rank=rank,
        mark=env.get(MARK, ""),
        carrier_address=carrier_address,
        data={
            "phase": phase,
            "hopeless": hopeless,
            "ends_itself": not parent,
            "status": word,
            "center": str(document.get("dataCenterId") or ""),
            "gpu": str(gpu.get("id") or ""),
            "count": int(number(gpu.get("count"))),
            "cloud": str(document.get("cloud") or ""),
            "image": str(document.get("image") or ""),
            "cuda": str(document.get("cudaVersion") or ""),
            "offered": offered,
            "mounts": _mounts(document, env.get(VOLUME, "")) or dict(kept.get("mounts") or {}),
            "urls": [f"https://{document['id']}-{port}.proxy.runpod.net" for port, _, kind in ports if kind == "http"],
        },
    )


def _rank(cluster: Document) -> int | None:
    rank = cluster.get("rank")
    return rank if isinstance(rank, int) and not isinstance(rank, bool) else None


def _endpoint(document: Document, status: Status) -> tuple[str, int]:
    """Where its sshd is reached from everywhere; ("", 0) while it is not."""
    direct = inner(inner(document, "ssh"), "direct")
    is_up = status is Status.RUNNING and document.get("runtime")
    return endpoint(direct.get("host"), direct.get("port")) if is_up else ("", 0)


def _carrier_address(document: Document) -> str:
    """Ports of type `http` go through RunPod's proxy and always have such an address, so they do not count."""
    mapped = [
        str(port.get("ip") or "")
        for port in objects(inner(document, "runtime"), "ports")
        if port.get("private") == SSH_PORT and port.get("type", "tcp") == "tcp"
    ]
    host = str(inner(inner(document, "ssh"), "direct").get("host") or "")
    return next((address for address in (host, *mapped) if is_behind_carrier(address)), "")


def _standing(
    document: Document, status: Status, carrier_address: str, *, is_reachable: bool
) -> tuple[ResourceState, str, str]:
    """State, what it waits for, why it never will be ready."""
    if status is Status.TERMINATED:
        return ResourceState.ENDED, "", ""
    if status in (Status.EXITED, Status.ERROR):
        return ResourceState.UNKNOWN, "", EXITED if status is Status.EXITED else BROKEN
    if status in (Status.PROVISIONING, Status.STARTING):
        return ResourceState.STARTING, "getting a machine", ""
    if status is not Status.RUNNING:
        word = str(document.get("status") or "").lower()
        return ResourceState.UNKNOWN, f"RunPod calls it {word or 'nothing at all'}", ""
    if not document.get("runtime"):
        return ResourceState.STARTING, "pulling its image", ""
    if carrier_address:
        return ResourceState.STARTING, "waiting for a public address", ""
    if not is_reachable:
        return ResourceState.STARTING, "waiting for its SSH port", ""
    return ResourceState.RUNNING, "", ""


def _mounts(document: Document, name: str) -> dict[str, str]:
    """Where its network volume is mounted, by the volume's id and by its name."""
    mounts = {
        str(mount["volumeId"]): str(mount["path"])
        for mount in objects(inner(document, "mounts"), "network")
        if {"volumeId", "path"} <= set(mount)
    }
    return {**mounts, name: next(iter(mounts.values()))} if mounts and name else mounts


def _per_hour(document: Document, status: Status, offered: float) -> float:
    """$/h: RunPod's own number, which has the disk in it (field reports); before there is one, the offer's price. A
    stopped pod has a cost of 0, and its disk still bills."""
    stopped = disk_price(number(document.get("disk"))) if status is Status.EXITED else 0.0
    return number(document.get("cost")) or stopped or offered


def parse_cluster(document: Document) -> Cluster:
    """A cluster of an answer that has an `id`."""
    return Cluster(
        id=str(document["id"]),
        name=str(document.get("name") or ""),
        center=str(document.get("dataCenterId") or ""),
        pod_count=int(number(inner(document, "compute").get("podCount"))),
    )


def cluster_resource(cluster: Cluster, account: Mapping[str, str], token: str) -> Resource:
    """A cluster itself. It has no price: its members' prices are the whole."""
    return Resource(
        kind=CLUSTER,
        id=cluster.id,
        region=REGION,
        name=cluster.name,
        bills=True,
        state=ResourceState.RUNNING,
        data={
            "account": dict(account),
            "token": token,
            "center": cluster.center,
            "machines": cluster.pod_count,
        },
    )


def resource_name(pod: Pod, clusters: Mapping[str, str]) -> str:
    """Our name of a pod; a member's by its environment, its cluster's name (`clusters`: by id) or its own name.

    A pod that is not ours keeps its own name.
    """
    if not pod.parent:
        return pod.name
    stem = pod.mark or _stem(clusters.get(pod.parent, "")) or _stem(pod.name)
    part = f"pod{pod.id}".replace("-", "") if pod.rank is None else str(pod.rank)
    return stem + part if stem else pod.name


def _stem(name: str) -> str:
    """The common beginning of the names of a cluster's parts; empty for a name that is not ours."""
    match = CLUSTER_NAME.fullmatch(name)
    return match[1] if match else ""
