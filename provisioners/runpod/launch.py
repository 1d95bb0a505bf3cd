"""What RunPod is asked for: the environment of a pod, and the bodies of the requests that create. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.core.models import Intent
from provisioners.keys import KeyPair
from provisioners.runpod import boot_script
from provisioners.runpod.machines import HOST_PUBLIC, TOKEN, VOLUME

MOUNT = "/workspace"
"""Where a network volume is mounted."""


def pod_environment(intent: Intent, token: str, host: KeyPair, public: str, api: str) -> dict[str, str]:
    """What a pod's environment holds of ours. `public`: the public half of our login key."""
    return {
        "PUBLIC_KEY": public,
        "GPUOPS_HOST_KEY": host.packed,
        HOST_PUBLIC: host.public,
        "GPUOPS_END": str(int(intent.boot_deadline)),
        TOKEN: token,
        boot_script.VARIABLE: boot_script.build_script(api),
        "RUNPOD_POD_USER": "0",  # root, whatever USER the image has: dstack sends it, too (its commit 76d90638a)
    }


def pod_body(name: str, offer: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """The body of `POST /pods`. `offer`: an `Offer.data` of ours. Without a count RunPod finds no machine for a GPU."""
    gpu = {"id": offer["gpu"], "count": offer["count"], **({"minCudaVersion": offer["cuda"]} if offer["cuda"] else {})}
    return {"name": name, "cloud": offer["cloud"], "gpu": gpu, **_container(offer, env)}


def cluster_body(name: str, offer: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """The body of `POST /clusters`, which takes no least version of CUDA."""
    compute = {"gpuTypeId": offer["gpu"], "gpuCountPerPod": offer["count"], "podCount": offer["nodes"]}
    return {"name": name, "type": "TRAINING", "compute": compute, **_container(offer, env)}


def _container(offer: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """What a pod and the members of a cluster have in common."""
    body: dict[str, Any] = {
        "args": boot_script.ARGS,
        "disk": offer["disk"],
        "ports": ["22/tcp", *offer.get("ports", ())],
        "env": dict(env),
    }
    for name, key in (("image", "image"), ("templateId", "template"), ("registry", "registry")):
        if offer.get(key):  # it overrides the template's own
            body[name] = offer[key]
    if offer["volume"]:
        body["mounts"] = {"network": [{"volumeId": offer["volume"], "path": MOUNT}]}
        body["env"][VOLUME] = str(offer.get("volume_name") or "")
    if offer["centers"]:
        body["dataCenterIds"] = list(offer["centers"])
    return body
