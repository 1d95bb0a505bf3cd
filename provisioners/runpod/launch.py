"""What RunPod is asked for: the environment of a pod, and the bodies of the requests that create. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioners.kit.documents import Document
from provisioners.kit.rented import NewMachine
from provisioners.runpod import boot_script

# Variables in a pod's environment.
MARK = "GPUOPS_MARK"
"""What the names of all parts of a cluster begin with."""
VOLUME = "GPUOPS_VOLUME"
"""The name of the network volume; RunPod's answer has its id only."""
MOUNT = "/workspace"
"""Where a network volume is mounted."""


@dataclass(frozen=True)
class PodSpec:
    """The pods that an offer stands for; `Offer.data` holds its document, by these names."""

    nodes: int
    gpu: str
    """RunPod's id of the GPU."""
    count: int
    """GPUs of each pod."""
    cloud: str
    centers: Sequence[str]
    """Empty: any."""
    disk: int
    """GB."""
    cuda: str
    """The least version; empty: any."""
    volume: str
    """The network volume's id; empty: none."""
    gpu_name: str = ""
    image: str = ""
    template: str = ""
    registry: str = ""
    ports: Sequence[str] = ()
    """Beside SSH's."""
    volume_name: str = ""

    @property
    def say(self) -> str:
        return f"{self.count} x {self.gpu_name or self.gpu}"

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def parse(cls, document: Document) -> PodSpec:
        """The pods of a JSON form; more may stand in it. Raises TypeError for what is none."""
        own: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name in document:
                value = document[field.name]
                own[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**own)


def pod_environment(new: NewMachine, api: str) -> dict[str, str]:
    """What a pod's environment holds of ours. `api`: the address by which it ends itself."""
    return {
        "PUBLIC_KEY": new.login,
        **new.boot_variables(),
        boot_script.VARIABLE: boot_script.BOOT.script(api),
        "RUNPOD_POD_USER": "0",  # root, whatever USER the image has: dstack sends it, too (its commit 76d90638a)
    }


def pod_body(name: str, spec: PodSpec, env: Mapping[str, str]) -> Document:
    """The body of `POST /pods`. Without a count RunPod finds no machine for a GPU."""
    gpu = {"id": spec.gpu, "count": spec.count, **({"minCudaVersion": spec.cuda} if spec.cuda else {})}
    return {"name": name, "cloud": spec.cloud, "gpu": gpu, **_container(spec, env)}


def cluster_body(name: str, spec: PodSpec, env: Mapping[str, str]) -> Document:
    """The body of `POST /clusters`, which takes no least version of CUDA."""
    compute = {"gpuTypeId": spec.gpu, "gpuCountPerPod": spec.count, "podCount": spec.nodes}
    return {"name": name, "type": "TRAINING", "compute": compute, **_container(spec, env)}


def _container(spec: PodSpec, env: Mapping[str, str]) -> Document:
    """What a pod and the members of a cluster have in common."""
    overrides = {"image": spec.image, "templateId": spec.template, "registry": spec.registry}
    volume_name = {VOLUME: spec.volume_name} if spec.volume else {}
    return {
        "args": boot_script.ARGS,
        "disk": spec.disk,
        "ports": ["22/tcp", *spec.ports],
        "env": {**env, **volume_name},
        **{name: value for name, value in overrides.items() if value},  # they override the template's own
        **({"mounts": {"network": [{"volumeId": spec.volume, "path": MOUNT}]}} if spec.volume else {}),
        **({"dataCenterIds": list(spec.centers)} if spec.centers else {}),
    }
