"""What RunPod is asked for: the environment of a pod, and the bodies of the requests that create. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioners.kit import boot_watch
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
    """The pods that an offer stands for; `Offer.data` holds its document."""

    nodes: int
    gpu: str
    """RunPod's id of the GPU."""
    gpu_name: str
    count: int
    """GPUs of each pod."""
    cloud: str
    centers: Sequence[str]
    """Empty: any."""
    disk_gb: int
    image: str
    template: str
    registry: str
    ports: Sequence[str]
    """Beside SSH's."""
    cuda: str
    """The least version; empty: any."""
    volume: str
    """The network volume's id; empty: none."""
    volume_name: str

    @property
    def say(self) -> str:
        return f"{self.count} x {self.gpu_name}"

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "gpu": self.gpu,
            "gpu_name": self.gpu_name,
            "nodes": self.nodes,
            "count": self.count,
            "cloud": self.cloud,
            "centers": list(self.centers),
            "disk": self.disk_gb,
            "image": self.image,
            "template": self.template,
            "registry": self.registry,
            "ports": list(self.ports),
            "cuda": self.cuda,
            "volume": self.volume,
            "volume_name": self.volume_name,
        }

    @classmethod
    def parse(cls, document: Document) -> PodSpec:
        """The pods of a JSON form; more may stand in it. Raises KeyError, TypeError, ValueError for what is none."""
        return cls(
            nodes=int(document["nodes"]),
            gpu=str(document["gpu"]),
            gpu_name=str(document.get("gpu_name") or document["gpu"]),
            count=int(document["count"]),
            cloud=str(document["cloud"]),
            centers=tuple(document["centers"]),
            disk_gb=int(document["disk"]),
            image=str(document.get("image") or ""),
            template=str(document.get("template") or ""),
            registry=str(document.get("registry") or ""),
            ports=tuple(document.get("ports") or ()),
            cuda=str(document["cuda"]),
            volume=str(document["volume"]),
            volume_name=str(document.get("volume_name") or ""),
        )


def pod_environment(new: NewMachine, api: str) -> dict[str, str]:
    """What a pod's environment holds of ours. `api`: the address by which it ends itself."""
    return {
        "PUBLIC_KEY": new.login,
        **boot_watch.variables(new.end, new.token, new.host),
        boot_script.VARIABLE: boot_script.build_script(api),
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
        "disk": spec.disk_gb,
        "ports": ["22/tcp", *spec.ports],
        "env": {**env, **volume_name},
        **{name: value for name, value in overrides.items() if value},  # they override the template's own
        **({"mounts": {"network": [{"volumeId": spec.volume, "path": MOUNT}]}} if spec.volume else {}),
        **({"dataCenterIds": list(spec.centers)} if spec.centers else {}),
    }
