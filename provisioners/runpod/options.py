"""RunPod's own flags, and a request checked and in RunPod's nouns. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.errors import UsageError
from gpuops.core.models import Option, Request
from provisioners.kit.container_images import cuda_of
from provisioners.kit.gpu_names import split_wish

CLUSTER_GPUS = 8
"""GPUs per node that are suggested for a cluster: clusters are known to be made of machines with as many."""
MAX_CLUSTER_NODES = 250
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
CLUSTER_IMAGE = "runpod/pytorch:1.0.7-cu1281-torch280-ubuntu2404-cluster"
"""The same with what RDMA needs (runpod/containers, pytorch-cluster): the one of RunPod's own template for clusters."""
DISK_GB = 100
CLOUDS = ("secure", "community", "any")
OPTIONS: Sequence[Option] = (
    Option(
        "cloud",
        "secure (data centers, the default) or community (cheaper; other people's machines, whose owners can see what "
        "is on them, without network volumes and not all with a public address), or any: both, by price.",
        default="secure",
    ),
    Option("disk", "GB of the pod's own disk, which is gone with the pod.", "int", default=DISK_GB),
    Option(
        "template",
        "A template, yours or a public one, by name or id: its image, environment and registry; gpuops' start command, "
        "ports and disk stand before the template's own.",
    ),
    Option("min-ram", "GB of RAM that a pod's machine has at least, as far as RunPod tells it of a GPU.", "int"),
    Option("min-vcpu", "vCPUs that a pod's machine has at least, as far as RunPod tells it of a GPU.", "int"),
    Option("registry", "The login for a private image, by name or id, as RunPod's console keeps it."),
    Option(
        "ports", "More ports to open: 6006/http (at a URL that `up` and `status` tell), 8000/tcp; several by commas."
    ),
    Option("volume", "A network volume, by name or id: mounted at /workspace, in its own data center."),
    Option(
        "min-cuda", "The oldest CUDA that the machine's driver may know (12.8), or none; without, as the image says."
    ),
)
PORT = re.compile(r"(\d{1,5})(?:/(http|tcp))?")
CUDA = re.compile(r"\d+\.\d+")


@dataclass(frozen=True)
class Wishes:
    """A checked request; RunPod was not asked for anything yet, so it has names where ids follow."""

    nodes: int
    gpus: int
    """Per node."""
    cloud: str
    """SECURE, COMMUNITY, or ANY: those of the two that can fulfil the other wishes."""
    disk: int
    volume: str
    image: str
    cuda: str
    """The oldest CUDA of a driver that does, `12.8`; empty: any."""
    template: str = ""
    registry: str = ""
    ports: tuple[str, ...] = ()
    """Beside SSH's: `6006/http`."""
    ram: int = 0
    """GB of a pod's RAM, at least; 0: any."""
    vcpus: int = 0

    @property
    def least(self) -> str:
        """`64 GB of RAM and 16 vCPUs`; empty where none is asked for."""
        told = (f"{self.ram} GB of RAM" * bool(self.ram), f"{self.vcpus} vCPUs" * bool(self.vcpus))
        return " and ".join(filter(None, told))


def wishes(request: Request) -> Wishes:
    """Raises UsageError for what makes no sense anywhere."""
    given = request.options
    cloud = str(given.get("cloud") or "secure").strip().lower()
    disk = DISK_GB if given.get("disk") is None else int(given["disk"])
    volume = str(given.get("volume") or "").strip()
    together = request.nodes > 1
    template, registry = (str(given.get(name) or "").strip() for name in ("template", "registry"))
    image = (request.image or ("" if template else CLUSTER_IMAGE if together else IMAGE)).strip()
    gpus = 1 if request.gpus is None else request.gpus
    if together and request.gpus is None:
        raise UsageError(
            f"{request.nodes} nodes of how many GPUs each?",
            f"--gpus {CLUSTER_GPUS} is what RunPod's clusters usually are made of, and say --max-price",
        )
    if cloud not in CLOUDS:
        raise UsageError(f"RunPod has no cloud '{cloud}'", f"--cloud is {', '.join(CLOUDS[:-1])} or {CLOUDS[-1]}")
    if gpus < 1:
        raise UsageError("a pod has at least one GPU", "leave out --gpus, or ask for 1 and more")
    if disk < 1:
        raise UsageError(f"a disk of {disk} GB is none", "--disk is in GB, 1 and more")
    if volume and cloud == "community":
        raise UsageError("community cloud has no network volumes", "leave out --volume, or --cloud community")
    if together and cloud == "community":
        raise UsageError("community cloud has no clusters", "leave out --cloud, or ask for one node")
    for name in ("min-ram", "min-vcpu"):
        if given.get(name) is not None and int(given[name]) < 1:
            raise UsageError(f"--{name} {given[name]} is no least of anything", "ask for 1 and more, or leave it out")
    for name in ("min-cuda", "min-ram", "min-vcpu", "template", "registry"):
        if together and given.get(name):
            raise UsageError(f"RunPod takes no --{name} for a cluster", "leave it out, or ask for one node")
    if request.nodes > MAX_CLUSTER_NODES:
        raise UsageError(
            f"a cluster of {request.nodes} is too large", f"RunPod's have at most {MAX_CLUSTER_NODES} nodes"
        )
    if not (image or template) or re.search(r"\s", image):
        raise UsageError(f"'{image}' is not the name of an image", f"write it like {IMAGE}")
    cuda = _cuda(str(given.get("min-cuda") or ""), image)
    ports = _ports(str(given.get("ports") or ""))
    ram, vcpus = int(given.get("min-ram") or 0), int(given.get("min-vcpu") or 0)
    return Wishes(request.nodes, gpus, cloud.upper(), disk, volume, image, cuda, template, registry, ports, ram, vcpus)


def _ports(given: str) -> tuple[str, ...]:
    """`6006` is `6006/http`. Raises UsageError."""
    found = []
    for one in split_wish(given.lower()):
        match = PORT.fullmatch(one)
        if not match or not 0 < int(match[1]) < 65536 or match[1] == "22":
            raise UsageError(f"--ports {one} is no port that can be opened", "write it like 6006/http or 8000/tcp")
        found.append(f"{int(match[1])}/{match[2] or 'http'}")
    return tuple(dict.fromkeys(found))


def _cuda(given: str, image: str) -> str:
    """An image made for a newer CUDA than its machine's driver knows never starts, and bills."""
    if given.strip().lower() == "none":
        return ""
    if given and not CUDA.fullmatch(given.strip()):
        raise UsageError(f"--min-cuda {given} is no version of CUDA", "write it like 12.8, or none")
    return given.strip() or cuda_of(image)
