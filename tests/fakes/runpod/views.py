"""How the service tells what it keeps."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.fakes.runpod.clock import rfc3339
from tests.fakes.runpod.records import Cluster, Pod, Volume

ACTIONS = {
    "PROVISIONING": ["stop", "terminate"],
    "STARTING": ["stop", "terminate"],
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["start", "terminate"],
    "TERMINATED": [],
}


def pod_view(pod: Pod, now: float) -> dict[str, Any]:
    asked = pod.request
    view = {
        "id": pod.id,
        "name": pod.name,
        "image": asked["image"],
        "args": asked["args"],
        "disk": asked["disk"],
        "ports": asked["ports"],
        "env": pod.env,
        "registry": asked["registry"],
        "status": pod.status,
        "actions": ACTIONS[pod.status],
        "mounts": asked["mounts"],
        "gpu": {"id": pod.gpu, "count": pod.gpus},
        "cloud": asked["cloud"],
        "dataCenterId": pod.data_center,
        "cudaVersion": pod.cuda,
        "ssh": {"proxy": _proxy(pod), "direct": _direct(pod)},
        "template": None,
        "cost": pod.cost,
        "locked": pod.locked,
        "globalNetworking": _global_network(pod),
        "runtime": _runtime(pod, now),
        "createdAt": rfc3339(pod.created),
        "startedAt": rfc3339(pod.started) if pod.started is not None else None,
    }
    if pod.cluster:
        view["cluster"] = _membership(pod, pod.cluster, now)
    return view


def _proxy(pod: Pod) -> dict[str, Any] | None:
    if pod.started is None:
        return None
    user = f"{pod.id}-64411eb2"
    return {"host": "ssh.runpod.io", "port": 22, "username": user, "command": f"ssh {user}@ssh.runpod.io"}


def _direct(pod: Pod) -> dict[str, Any] | None:
    if not (pod.mapped and pod.body.up and pod.has_ssh and pod.status == "RUNNING"):
        return None
    command = f"ssh root@{pod.address} -p {pod.port}"
    return {"host": pod.address, "port": pod.port, "username": "root", "command": command}


def _runtime(pod: Pod, now: float) -> dict[str, Any] | None:
    if pod.status == "PROVISIONING":
        return {}
    if pod.status != "RUNNING" or pod.runtime is None or not pod.body.up:
        return None
    gpus = [{"util": 0, "memoryUtil": 0} for _ in range(pod.gpus)]
    return {"uptime": int(now - pod.runtime), "gpus": gpus, "ports": ports_view(pod) if pod.mapped else []}


def ports_view(pod: Pod) -> list[dict[str, Any]]:
    found = []
    for at, port in enumerate(pod.request["ports"]):
        private, _, kind = port.partition("/")
        public, address = (pod.port if private == "22" else pod.public_port + 1 + at), pod.address
        if kind != "tcp":  # through the proxy, from an address of its own network
            public, address = 60000 + at, "100.65.0.119"
        found.append({"private": int(private), "public": public, "type": kind, "ip": address})
    return found


def _global_network(pod: Pod) -> dict[str, Any]:
    if not pod.request["globalNetworking"]:
        return {"enabled": False}
    return {"enabled": True, "ip": "10.65.1.42", "internalDns": f"{pod.id}.runpod.internal"}


def _membership(pod: Pod, cluster: Cluster, now: float) -> dict[str, Any]:
    if now < pod.created + pod.life.ranked_s:
        return {"id": cluster.id, "rank": None}
    return {"id": cluster.id, "rank": pod.rank, "ip": pod.ip}


def cluster_view(cluster: Cluster, now: float) -> dict[str, Any]:
    members = [pod for pod in cluster.members if pod.bills]
    view = {
        "id": cluster.id,
        "name": cluster.name,
        "type": cluster.request["type"],
        "compute": cluster.request["compute"],
        "pods": {"total": len(members), "byStatus": dict(Counter(pod.status for pod in members))},
        "createdAt": rfc3339(cluster.created),
    }
    first = next((pod for pod in members if pod.rank == 0), None)
    if first and now >= first.created + first.life.ranked_s:
        view["dataCenterId"] = cluster.data_center
        view["network"] = {"cidr": f"{cluster.network}.0.0/16", "vxlanId": cluster.number, "vxlanPort": 4789}
        view["primary"] = {"podId": first.id, "status": first.status}
        if _direct(first):
            view["primary"]["sshEndpoint"] = f"{first.address}:{first.port}"
    return view


def volume_view(volume: Volume) -> dict[str, Any]:
    return {
        "id": volume.id,
        "name": volume.name,
        "size": volume.size,
        "dataCenter": volume.data_center,
        "type": volume.type,
    }


def template_view(one: str, told: dict[str, Any]) -> dict[str, Any]:
    plain = {"args": "", "disk": 50, "mounts": {}, "ports": [], "env": {}, "registry": None, "allowedCudaVersions": []}
    flags = {"serverless": False, "public": False, "category": "NVIDIA", "startSsh": True, "startJupyter": False}
    return {**plain, **flags, **told, "id": one, "name": f"named {one}"}
