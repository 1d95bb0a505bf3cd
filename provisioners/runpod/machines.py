"""A pod, and a cluster of pods, as RunPod describes them and as our `Resource`. Pure.

`read` parses an answer once into a `Pod`; all else works on that. What a pod's environment holds of ours is given back
in every answer, so that a pod whose creation was not answered is recognised by it.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from gpuops.core.models import Resource
from provisioners.runpod import boot_script
from provisioners.runpod.offers import disk_price
from provisioners.runpod.regions import REGION

# Variables in a pod's environment.
TOKEN = "GPUOPS_TOKEN"
HOST_PUBLIC = "GPUOPS_HOST_PUBLIC"
MARK = "GPUOPS_MARK"
"""What the names of all parts of a cluster begin with."""
VOLUME = "GPUOPS_VOLUME"
"""The name of the network volume; RunPod's answer has its id only."""

CLUSTER = "cluster"
"""Kind of a resource that is a cluster, and the last part of its mark."""
CLUSTER_NAME = re.compile(rf"(gpuops-.+-){CLUSTER}(-.*)?")
"""`gpuops-0a1b2c3d-lab-cluster`, or a member's name that RunPod makes of it."""
CARRIER_NAT = ipaddress.ip_network("100.64.0.0/10")
"""Addresses behind a carrier's network address translation: they cannot be reached from outside."""
EXITED = "its container has ended, and RunPod has stopped the pod"
BROKEN = "RunPod says that it is in an error it does not come out of"


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
    hidden: str
    """The address that is not public by which its SSH port would be reached; empty where there is none."""
    env: Mapping[str, str]
    membership: Membership | None
    gpu: str
    gpu_count: Any
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
        public = running and self.host and self.port and not _is_carrier_nat(self.host)
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


def read(document: Mapping[str, Any]) -> Pod:
    """A pod of an answer that has an `id`. What else is missing, or of another type, counts as not said."""
    word = str(document.get("status") or "")
    gpu = _inner(document, "gpu")
    host, port = _mapped_ssh(document)
    return Pod(
        id=str(document["id"]),
        name=str(document.get("name") or ""),
        status=Status(word.upper()),
        status_word=word,
        has_runtime=bool(document.get("runtime")),
        host=host,
        port=port,
        hidden=_hidden_address(document, host),
        env={str(name): str(value or "") for name, value in _inner(document, "env").items()},
        membership=_membership(document),
        gpu=str(gpu.get("id") or ""),
        gpu_count=gpu.get("count") or 0,
        center=str(document.get("dataCenterId") or ""),
        cloud=str(document.get("cloud") or ""),
        image=str(document.get("image") or ""),
        cuda=str(document.get("cudaVersion") or ""),
        cost=_number(document.get("cost")),
        disk=_number(document.get("disk")),
        volumes={
            str(one["volumeId"]): str(one["path"])
            for one in _inner(document, "mounts").get("network") or []
            if {"volumeId", "path"} <= set(one)
        },
        http_ports=tuple(
            port
            for port, _, kind in (str(one).partition("/") for one in _list(document.get("ports")))
            if kind == "http"
        ),
    )


def _membership(document: Mapping[str, Any]) -> Membership | None:
    inside = _inner(document, "cluster")
    if not inside:
        return None
    rank = inside.get("rank")
    known = isinstance(rank, int) and not isinstance(rank, bool)
    return Membership(str(inside.get("id") or ""), rank if known else None, str(inside.get("ip") or ""))


def _mapped_ssh(document: Mapping[str, Any]) -> tuple[str, int]:
    direct = _inner(_inner(document, "ssh"), "direct")
    port = direct.get("port")
    return str(direct.get("host") or ""), port if isinstance(port, int) and 0 < port < 65536 else 0


def _hidden_address(document: Mapping[str, Any], host: str) -> str:
    """Ports of type `http` go through RunPod's proxy and always have such an address, so they do not count."""
    mapped = [
        str(one.get("ip") or "")
        for one in _list(_inner(document, "runtime").get("ports"))
        if isinstance(one, dict) and one.get("private") == 22 and one.get("type", "tcp") == "tcp"
    ]
    return next((address for address in (host, *mapped) if _is_carrier_nat(address)), "")


def standing(pod: Pod) -> tuple[str, str, str]:
    """Our state, what it is at while it is not ready, and why it never will be."""
    if pod.status is Status.TERMINATED:
        return "ended", "", ""
    if pod.status is Status.EXITED:
        return "unknown", "", EXITED
    if pod.status is Status.ERROR:
        return "unknown", "", BROKEN
    if pod.status in (Status.PROVISIONING, Status.STARTING):
        return "starting", "getting a machine", ""
    if pod.status is not Status.RUNNING:
        return "unknown", f"RunPod calls it {pod.status_word.lower() or 'nothing at all'}", ""
    if not pod.has_runtime:
        return "starting", "pulling its image", ""
    if pod.hidden:
        return "starting", "waiting for a public address", ""
    if not pod.endpoint[0]:
        return "starting", "waiting for its SSH port", ""
    return "running", "", ""


def resource(
    pod: Pod,
    name: str,
    home: Path,
    account: Mapping[str, str],
    *,
    price: float = 0.0,
    known: Mapping[str, Any] | None = None,
    parent: str = "",
    kind: str = "machine",
) -> Resource:
    """A pod as our noun. `price`: $/h where the pod has no cost yet; `known`: its `Resource.data` of before."""
    before = known or {}
    state, phase, hopeless = standing(pod)
    host, port = pod.endpoint
    host_key = pod.env.get(HOST_PUBLIC) or str(before.get("host_public") or "")
    inside = parent or pod.cluster
    offered = float(price or before.get("offered") or 0.0)
    data: dict[str, Any] = {
        "connection": "ssh",
        "ssh_folder": str(home / "ssh"),
        "token": pod.token or str(before.get("token") or ""),
        "revives": True,
        "boot_watch": boot_script.WATCH,
        "ends_itself": not inside,
        "throwaway_key": before.get("throwaway_key", True),
        "host_public": host_key,
        "account": dict(account),
        "status": pod.status_word,
        "center": pod.center,
        "gpu": pod.gpu,
        "count": pod.gpu_count,
        "cloud": pod.cloud,
        "image": pod.image,
        "cuda": pod.cuda,
        "offered": offered,
        "mounts": _mounts(pod) or dict(before.get("mounts") or {}),
        "phase": phase,
        "hopeless": hopeless,
        "stopped": False,
        "urls": pod.urls,
    }
    if host and host_key:
        data["target"] = {
            "host": host,
            "port": port,
            "user": "root",
            "identities": [str(home / "ssh" / "id_ed25519")],
            "identities_only": True,
            "host_keys": [host_key],
        }
    return Resource(
        kind=kind,
        id=pod.id,
        region=REGION,
        name=name,
        bills=True,
        parent=inside,
        state=state,
        address=host,
        port=port,
        private_address=pod.membership.address if pod.membership else "",
        per_hour=_per_hour(pod, offered),
        data=data,
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


def cluster_resource(document: Mapping[str, Any], account: Mapping[str, str], token: str = "") -> Resource:
    """A cluster itself. It has no price: its members' prices are the whole."""
    return Resource(
        kind=CLUSTER,
        id=str(document["id"]),
        region=REGION,
        name=str(document.get("name") or ""),
        bills=True,
        state="running",
        data={
            "account": dict(account),
            "token": token,
            "center": str(document.get("dataCenterId") or ""),
            "machines": _inner(document, "compute").get("podCount") or 0,
        },
    )


def mark(pod: Pod, names: Mapping[str, str]) -> str:
    """Our mark of a pod; a member's by its environment, its cluster's name (`names`: by id) or its own name.

    A pod that is not ours keeps its own name.
    """
    if not pod.cluster:
        return pod.name
    stem = pod.env.get(MARK, "") or _stem(names.get(pod.cluster, "")) or _stem(pod.name)
    part = f"pod{pod.id}".replace("-", "") if pod.rank is None else str(pod.rank)
    return stem + part if stem else pod.name


def _stem(name: str) -> str:
    """What the marks of all parts of a cluster begin with; empty for a name that is not ours."""
    match = CLUSTER_NAME.fullmatch(name)
    return match[1] if match else ""


def _is_carrier_nat(address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in CARRIER_NAT
    except ValueError:
        return False


def _inner(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = document.get(name)
    return inner if isinstance(inner, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float:
    try:
        return float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError):
        return 0.0
