"""A pod as RunPod is asked for it, and as it tells of one. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuops.core.models import Intent, Resource
from provisioners.keys import Pair
from provisioners.runpod import boot_script
from provisioners.runpod.catalog import REGION
from provisioners.runpod.offers import disk_price

TOKEN = "GPUOPS_TOKEN"
HOST_PUBLIC = "GPUOPS_HOST_PUBLIC"
SHARED = ipaddress.ip_network("100.64.0.0/10")
"""Addresses behind a carrier's own translation: nobody outside reaches them."""
NOT_PUBLIC = (
    "its machine has no public address ({address} is behind another's): take --cloud secure, or another GPU or region"
)
EXITED = "its container has ended, and RunPod has stopped the pod"
BROKEN = "RunPod says that it is in an error it does not come out of"
MOUNT = "/workspace"
VOLUME = "GPUOPS_VOLUME"
"""What the network volume at MOUNT is called; of RunPod a pod knows its id only."""


def variables(intent: Intent, token: str, host: Pair, public: str, api: str) -> dict[str, str]:
    """What a pod's environment holds of ours. RunPod gives it back in every answer, so a lost one can be adopted."""
    return {
        "PUBLIC_KEY": public,
        "GPUOPS_HOST_KEY": host.packed,
        HOST_PUBLIC: host.public,
        "GPUOPS_END": str(int(intent.boot_deadline)),
        TOKEN: token,
        boot_script.VARIABLE: boot_script.script(api),
        "RUNPOD_POD_USER": "0",  # root, whatever USER the image has: dstack sends it, too (its commit 76d90638a)
    }


def container(offer: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """What a pod and the members of a cluster have in common."""
    body: dict[str, Any] = {
        "args": boot_script.ARGS,
        "disk": offer["disk"],
        "ports": ["22/tcp", *offer.get("ports", ())],
        "env": dict(env),
    }
    for name, key in (("image", "image"), ("templateId", "template"), ("registry", "registry")):
        if offer.get(key):  # what stands here goes before the template's own
            body[name] = offer[key]
    if offer["volume"]:
        body["mounts"] = {"network": [{"volumeId": offer["volume"], "path": MOUNT}]}
        body["env"][VOLUME] = str(offer.get("volume_name") or "")
    if offer["centers"]:
        body["dataCenterIds"] = list(offer["centers"])
    return body


def body(name: str, offer: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """The body of `POST /pods`. Without a count RunPod finds no machine for a GPU at all."""
    gpu = {"id": offer["gpu"], "count": offer["count"], **({"minCudaVersion": offer["cuda"]} if offer["cuda"] else {})}
    return {"name": name, "cloud": offer["cloud"], "gpu": gpu, **container(offer, env)}


def with_env(pod: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """A pod as it was just made, whatever of its environment the answer holds."""
    told = pod.get("env")
    return {**pod, "env": {**env, **(told if isinstance(told, dict) else {})}}


def resource(
    pod: Mapping[str, Any],
    name: str,
    home: Path,
    account: Mapping[str, str],
    *,
    price: float = 0.0,
    known: Mapping[str, Any] | None = None,
    parent: str = "",
    kind: str = "machine",
) -> Resource:
    """A pod as our noun. `price`: what it costs where the pod does not tell; `known`: what `data` held of it before."""
    before = known or {}
    state, phase, hopeless = standing(pod)
    host, port = _direct(pod)
    env = pod.get("env")
    told: Mapping[str, Any] = env if isinstance(env, dict) else {}
    public = str(told.get(HOST_PUBLIC) or before.get("host_public") or "")
    member = pod.get("cluster") if isinstance(pod.get("cluster"), dict) else {}
    inside = parent or str((member or {}).get("id") or "")
    gpu = pod.get("gpu") if isinstance(pod.get("gpu"), dict) else {}
    data: dict[str, Any] = {
        "connection": "ssh",
        "ssh_folder": str(home / "ssh"),
        "token": _token(str(told.get(TOKEN) or ""), member or {}) or str(before.get("token") or ""),
        "revives": True,
        "boot_watch": boot_script.WATCH,
        "ends_itself": not inside,
        "throwaway_key": before.get("throwaway_key", True),
        "host_public": public,
        "account": dict(account),
        "status": str(pod.get("status") or ""),
        "center": str(pod.get("dataCenterId") or ""),
        "gpu": str((gpu or {}).get("id") or ""),
        "count": (gpu or {}).get("count") or 0,
        "cloud": str(pod.get("cloud") or ""),
        "image": str(pod.get("image") or ""),
        "cuda": str(pod.get("cudaVersion") or ""),
        "offered": price or before.get("offered") or 0.0,
        "mounts": _mounts(pod, str(told.get(VOLUME) or "")) or dict(before.get("mounts") or {}),
        "phase": phase,
        "hopeless": hopeless,
        "stopped": False,
        "urls": urls(pod),
    }
    if host and public:
        data["target"] = {
            "host": host,
            "port": port,
            "user": "root",
            "identities": [str(home / "ssh" / "id_ed25519")],
            "identities_only": True,
            "host_keys": [public],
        }
    return Resource(
        kind=kind,
        id=str(pod["id"]),
        region=REGION,
        name=name,
        bills=True,
        parent=inside,
        state=state,
        address=host,
        port=port,
        private_address=str((member or {}).get("ip") or ""),
        per_hour=_per_hour(pod, state, float(data["offered"])),
        data=data,
    )


def urls(pod: Mapping[str, Any]) -> list[str]:
    """Where RunPod's proxy shows a pod's `http` ports."""
    ports = pod.get("ports")
    listed = [str(port).partition("/") for port in (ports if isinstance(ports, list) else [])]
    return [f"https://{pod['id']}-{port}.proxy.runpod.net" for port, _, kind in listed if kind == "http"]


def _mounts(pod: Mapping[str, Any], name: str) -> dict[str, str]:
    """Where a pod's network volume lies, by its id and by its name."""
    mounts = pod.get("mounts")
    network = mounts.get("network") if isinstance(mounts, dict) else None
    found = {str(one["volumeId"]): str(one["path"]) for one in network or [] if {"volumeId", "path"} <= set(one)}
    return {**found, name: next(iter(found.values()))} if found and name else found


def _token(told: str, member: Mapping[str, Any]) -> str:
    """A pod's own; of what the members of a cluster have in common the rank makes one's own."""
    return f"{told}-{member['rank']}" if told and member.get("rank") is not None else told


def standing(pod: Mapping[str, Any]) -> tuple[str, str, str]:
    """Our state, what it is at while it is not ready, and why it never will be."""
    status = str(pod.get("status") or "").upper()
    if status == "TERMINATED":
        return "ended", "", ""
    if has_stopped(pod):
        return "unknown", "", EXITED
    if status == "ERROR":
        return "unknown", "", BROKEN
    if status in ("PROVISIONING", "STARTING"):
        return "starting", "getting a machine", ""
    if status != "RUNNING":
        return "unknown", f"RunPod calls it {status.lower() or 'nothing at all'}", ""
    if not pod.get("runtime"):
        return "starting", "pulling its image", ""
    if hidden(pod):
        return "starting", "waiting for a public address", ""
    if not _direct(pod)[0]:
        return "starting", "waiting for its SSH port", ""
    return "running", "", ""


def is_coming(pod: Mapping[str, Any]) -> bool:
    """Whether it is on its way up, or seems to be there."""
    return str(pod.get("status") or "").upper() in ("PROVISIONING", "STARTING", "RUNNING")


def has_stopped(pod: Mapping[str, Any]) -> bool:
    """Whether it is there and stands still: stopped by its host's failure or for want of money, since RunPod starts a
    container that ends by itself anew."""
    return str(pod.get("status") or "").upper() == "EXITED"


def _direct(pod: Mapping[str, Any]) -> tuple[str, int]:
    """Where its sshd is reached from everywhere; ("", 0) while it is not."""
    host, port = _endpoint(pod)
    running = str(pod.get("status") or "").upper() == "RUNNING" and bool(pod.get("runtime"))
    return (host, port) if running and host and port and not _shared(host) else ("", 0)


def _endpoint(pod: Mapping[str, Any]) -> tuple[str, int]:
    ssh = pod.get("ssh")
    direct = ssh.get("direct") if isinstance(ssh, dict) else None
    if not isinstance(direct, dict):
        return "", 0
    port = direct.get("port")
    return str(direct.get("host") or ""), port if isinstance(port, int) and 0 < port < 65536 else 0


def hidden(pod: Mapping[str, Any]) -> str:
    """The address of a pod that has none of its own in public, by which its port would be reached. Ports that go
    through RunPod's proxy (type `http`) always have such a one."""
    runtime = pod.get("runtime")
    listed = runtime.get("ports") if isinstance(runtime, dict) else None
    mapped = [
        str(one.get("ip") or "")
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict) and one.get("private") == 22 and one.get("type", "tcp") == "tcp"
    ]
    return next((address for address in (_endpoint(pod)[0], *mapped) if _shared(address)), "")


def _shared(address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in SHARED
    except ValueError:
        return False


def _per_hour(pod: Mapping[str, Any], state: str, offered: float) -> float:
    """$/h: RunPod's own number, which has the disk in it (field reports); while it tells none, what was offered. Of a
    stopped pod it tells 0, and its disk still bills."""
    if state == "ended":
        return 0.0
    stopped = disk_price(_number(pod.get("disk"))) if has_stopped(pod) else 0.0
    return _number(pod.get("cost")) or stopped or offered


def _number(said: Any) -> float:
    try:
        return float(said) if not isinstance(said, bool) else 0.0
    except (TypeError, ValueError):
        return 0.0


PART = "cluster"
MARK = "GPUOPS_MARK"
"""The variable with what the names of all parts begin with."""
NAMED = re.compile(rf"(gpuops-.+-){PART}(-.*)?")


def cluster_body(name: str, offer: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """The body of `POST /clusters`. Which CUDA its machines' drivers know cannot be asked for."""
    compute = {"gpuTypeId": offer["gpu"], "gpuCountPerPod": offer["count"], "podCount": offer["nodes"]}
    return {"name": name, "type": "TRAINING", "compute": compute, **container(offer, env)}


def cluster_resource(cluster: Mapping[str, Any], account: Mapping[str, str], token: str = "") -> Resource:
    """The cluster itself. What it costs, its members say."""
    compute = cluster.get("compute")
    nodes = compute.get("podCount") if isinstance(compute, dict) else 0
    return Resource(
        kind=PART,
        id=str(cluster["id"]),
        region=REGION,
        name=str(cluster.get("name") or ""),
        bills=True,
        state="running",
        data={
            "account": dict(account),
            "token": token,
            "center": str(cluster.get("dataCenterId") or ""),
            "machines": nodes,
        },
    )


def kind(pod: Mapping[str, Any]) -> str:
    return "member" if member(pod) and rank(pod) is None else "machine"


def member(pod: Mapping[str, Any]) -> str:
    """The id of the cluster that a pod is in; empty for one on its own."""
    inside = pod.get("cluster")
    return str(inside.get("id") or "") if isinstance(inside, dict) else ""


def rank(pod: Mapping[str, Any]) -> int | None:
    inside = pod.get("cluster")
    found = inside.get("rank") if isinstance(inside, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def mark(pod: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Our mark of a pod; for a member as its environment, its cluster (`names`: id to name) or its own name tells.

    It is whatever the pod is called where that is not ours.
    """
    name = str(pod.get("name") or "")
    if not member(pod):
        return name
    env = pod.get("env")
    told = str(env.get(MARK) or "") if isinstance(env, dict) else ""
    stem = told or _stem(names.get(member(pod), "")) or _stem(name)
    at = rank(pod)
    part = f"pod{pod['id']}".replace("-", "") if at is None else str(at)
    return stem + part if stem else name


def _stem(name: str) -> str:
    """`gpuops-0a1b2c3d-lab-cluster`, or a member's name made of it: what all parts begin with."""
    match = NAMED.fullmatch(name)
    return match[1] if match else ""
