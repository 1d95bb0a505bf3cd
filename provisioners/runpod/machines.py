"""Pods and clusters of pods as our `Resource`. Pure.

A resource is made of what RunPod says now (`pods`) and of what the ledger has kept of it from before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuops.core.models import MACHINE as MACHINE
from gpuops.core.models import Resource, ResourceState
from provisioners.base import NOTHING
from provisioners.kit import boot_watch
from provisioners.kit.boot_watch import HOST_PUBLIC
from provisioners.kit.ssh_machine import Login, Machine
from provisioners.runpod.offers import disk_price
from provisioners.runpod.pods import MARK, VOLUME, Cluster, Pod, Status
from provisioners.runpod.regions import REGION

CLUSTER = "cluster"
"""Kind of a resource that is a cluster, and the last part of its name."""
CLUSTER_NAME = re.compile(rf"(gpuops-.+-){CLUSTER}(-.*)?")
"""`gpuops-0a1b2c3d-lab-cluster`, or a member's name that RunPod makes of it."""
EXITED = "its container has ended, and RunPod has stopped the pod"
BROKEN = "RunPod says that it is in an error it does not come out of"


@dataclass(frozen=True)
class Standing:
    """What a pod's state means for us."""

    state: ResourceState
    phase: str = ""
    """What it waits for while it is not ready."""
    hopeless: str = ""
    """Why it never will be ready."""


def standing(pod: Pod) -> Standing:
    if pod.status is Status.TERMINATED:
        return Standing(ResourceState.ENDED)
    if pod.status is Status.EXITED:
        return Standing(ResourceState.UNKNOWN, hopeless=EXITED)
    if pod.status is Status.ERROR:
        return Standing(ResourceState.UNKNOWN, hopeless=BROKEN)
    if pod.status in (Status.PROVISIONING, Status.STARTING):
        return Standing(ResourceState.STARTING, "getting a machine")
    if pod.status is not Status.RUNNING:
        return Standing(ResourceState.UNKNOWN, f"RunPod calls it {pod.status_word.lower() or 'nothing at all'}")
    if not pod.has_runtime:
        return Standing(ResourceState.STARTING, "pulling its image")
    if pod.carrier_address:
        return Standing(ResourceState.STARTING, "waiting for a public address")
    if not pod.endpoint[0]:
        return Standing(ResourceState.STARTING, "waiting for its SSH port")
    return Standing(ResourceState.RUNNING)


def pod_machine(
    pod: Pod, name: str, parent: str = "", kept: Mapping[str, Any] = NOTHING, price: float = 0.0
) -> Machine:
    """A pod as it is now.

    parent  its cluster's id, where that is known already
    kept    its data, as the ledger has it
    price   $/h while RunPod says none
    """
    now = standing(pod)
    parent = parent or pod.cluster
    offered = float(price or kept.get("offered") or 0.0)
    return Machine(
        id=pod.id,
        name=name,
        region=REGION,
        state=now.state,
        login=Login("root", *pod.endpoint, pod.env.get(HOST_PUBLIC, "")),
        token=pod.token,
        per_hour=_per_hour(pod, offered),
        private_address=pod.membership.address if pod.membership else "",
        kind=pod.kind,
        parent=parent,
        data={
            "phase": now.phase,
            "hopeless": now.hopeless,
            "stopped": False,
            "boot_watch": boot_watch.FOLDER,
            "ends_itself": not parent,
            "status": pod.status_word,
            "center": pod.center,
            "gpu": pod.gpu,
            "count": pod.gpu_count,
            "cloud": pod.cloud,
            "image": pod.image,
            "cuda": pod.cuda,
            "offered": offered,
            "mounts": _mounts(pod) or dict(kept.get("mounts") or {}),
            "urls": pod.urls,
        },
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


def _mounts(pod: Pod) -> dict[str, str]:
    """Where its network volume is mounted, by the volume's id and by its name."""
    name, mounts = pod.env.get(VOLUME, ""), dict(pod.volumes)
    return {**mounts, name: next(iter(mounts.values()))} if mounts and name else mounts


def _per_hour(pod: Pod, offered: float) -> float:
    """$/h: RunPod's own number, which has the disk in it (field reports); before there is one, the offer's price. A
    stopped pod has a cost of 0, and its disk still bills."""
    if pod.status is Status.TERMINATED:
        return 0.0
    stopped = disk_price(pod.disk) if pod.status is Status.EXITED else 0.0
    return pod.cost or stopped or offered


def resource_name(pod: Pod, clusters: Mapping[str, str]) -> str:
    """Our name of a pod; a member's by its environment, its cluster's name (`clusters`: by id) or its own name.

    A pod that is not ours keeps its own name.
    """
    if not pod.cluster:
        return pod.name
    stem = pod.env.get(MARK, "") or _stem(clusters.get(pod.cluster, "")) or _stem(pod.name)
    part = f"pod{pod.id}".replace("-", "") if pod.rank is None else str(pod.rank)
    return stem + part if stem else pod.name


def _stem(name: str) -> str:
    """The common beginning of the names of a cluster's parts; empty for a name that is not ours."""
    match = CLUSTER_NAME.fullmatch(name)
    return match[1] if match else ""
