"""Instant Clusters: pods that RunPod makes together, with a fast network of their own. Pure.

A cluster is a resource of its own (kind `cluster`) whose members are the machines, in the order of their ranks. A
member that has no rank yet is a `member`: it is ours and it bills, and nobody knows which node it will be. Members
have one environment, so the mark and the token in it are those of them all, and the rank makes them their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuops.core.models import Resource
from provisioners.runpod.places import REGION
from provisioners.runpod.pods import container

PART = "cluster"
MARK = "GPUOPS_MARK"
"""The variable with what the names of all parts begin with."""
NAMED = re.compile(rf"(gpuops-.+-){PART}(-.*)?")


def body(name: str, offer: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """The body of `POST /clusters`. Which CUDA its machines' drivers know cannot be asked for."""
    compute = {"gpuTypeId": offer["gpu"], "gpuCountPerPod": offer["count"], "podCount": offer["nodes"]}
    return {"name": name, "type": "TRAINING", "compute": compute, **container(offer, env)}


def resource(cluster: Mapping[str, Any], account: Mapping[str, str], token: str = "") -> Resource:
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
