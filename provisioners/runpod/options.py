"""RunPod's own flags, and a request checked and in RunPod's nouns. Pure."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from gpuops.core.errors import UsageError
from gpuops.core.models import Request
from provisioners.kit.container_images import cuda_of
from provisioners.kit.gpu_names import split_wish
from provisioners.kit.options import Check, OwnOptions, option

CLUSTER_GPUS = 8
"""GPUs per node that are suggested for a cluster: clusters are known to be made of machines with as many."""
MAX_CLUSTER_NODES = 250
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
CLUSTER_IMAGE = "runpod/pytorch:1.0.7-cu1281-torch280-ubuntu2404-cluster"
"""The same with what RDMA needs (runpod/containers, pytorch-cluster): the one of RunPod's own template for clusters."""
CLOUDS = ("secure", "community", "any")
PORT = re.compile(r"(\d{1,5})(?:/(http|tcp))?")
CUDA = re.compile(r"\d+\.\d+")


@dataclass(frozen=True)
class Wishes(OwnOptions):
    """RunPod was not asked for anything yet, so it has names where ids follow."""

    who = "RunPod"
    default_image = IMAGE
    cloud: str = option(
        "secure (data centers, the default) or community (cheaper; other people's machines, whose owners can see what "
        "is on them, without network volumes and not all with a public address), or any: both, by price.",
        "secure",
    )
    disk: int = option("GB of the pod's own disk, which is gone with the pod.", 100, least=1)
    template: str = option(
        "A template, yours or a public one, by name or id: its image, environment and registry; gpuops' start command, "
        "ports and disk stand before the template's own.",
        "",
    )
    min_ram: int = option(
        "GB of RAM that a pod's machine has at least, as far as RunPod tells it of a GPU.", 0, least=1
    )
    min_vcpu: int = option("vCPUs that a pod's machine has at least, as far as RunPod tells it of a GPU.", 0, least=1)
    registry: str = option("The login for a private image, by name or id, as RunPod's console keeps it.", "")
    ports: str = option(
        "More ports to open: 6006/http (at a URL that `up` and `status` tell), 8000/tcp; several by commas.", ""
    )
    volume: str = option("A network volume, by name or id: mounted at /workspace, in its own data center.", "")
    min_cuda: str = option(
        "The oldest CUDA that the machine's driver may know (12.8), or none; without, as the image says.", ""
    )

    @property
    def image(self) -> str:
        default = "" if self.template else CLUSTER_IMAGE if self.nodes > 1 else IMAGE
        return (self.request.image or default).strip()

    @property
    def nodes(self) -> int:
        return self.request.nodes

    @property
    def least(self) -> str:
        """`64 GB of RAM and 16 vCPUs`; empty where none is asked for."""
        told = (f"{self.min_ram} GB of RAM" * bool(self.min_ram), f"{self.min_vcpu} vCPUs" * bool(self.min_vcpu))
        return " and ".join(filter(None, told))

    def checks(self) -> list[Check]:
        nodes, is_community = self.nodes, self.cloud.lower() == "community"
        alone = ("min_cuda", "min_ram", "min_vcpu", "template", "registry")
        refused = next((name.replace("_", "-") for name in alone if getattr(self, name)), "") if nodes > 1 else ""
        return [
            (nodes > 1 and self.request.gpus is None, f"{nodes} nodes of how many GPUs each?",
             f"--gpus {CLUSTER_GPUS} is what RunPod's clusters usually are made of, and say --max-price"),
            (self.cloud.lower() not in CLOUDS, f"RunPod has no cloud '{self.cloud}'",
             f"--cloud is {', '.join(CLOUDS[:-1])} or {CLOUDS[-1]}"),
            (self.volume and is_community, "community cloud has no network volumes",
             "leave out --volume, or --cloud community"),
            (nodes > 1 and is_community, "community cloud has no clusters", "leave out --cloud, or ask for one node"),
            (refused, f"RunPod takes no --{refused} for a cluster", "leave it out, or ask for one node"),
            (nodes > MAX_CLUSTER_NODES, f"a cluster of {nodes} is too large",
             f"RunPod's have at most {MAX_CLUSTER_NODES} nodes"),
            (not (self.image or self.template), f"'{self.image}' is not the name of an image",
             f"write it like {IMAGE}"),
        ]  # fmt: skip


def wishes(request: Request) -> Wishes:
    """A checked request: `cloud` is SECURE, COMMUNITY, or ANY (those of the two that can fulfil the other wishes),
    `min_cuda` as the image says where it is not given. Raises UsageError for what makes no sense anywhere."""
    own = Wishes.parse(request)
    return dataclasses.replace(
        own, cloud=own.cloud.upper(), min_cuda=_cuda(own.min_cuda, own.image), ports=_ports(own.ports)
    )


def _ports(given: str) -> str:
    """`6006` is `6006/http`. Raises UsageError."""
    found = []
    for one in split_wish(given.lower()):
        match = PORT.fullmatch(one)
        if not match or not 0 < int(match[1]) < 65536 or match[1] == "22":
            raise UsageError(f"--ports {one} is no port that can be opened", "write it like 6006/http or 8000/tcp")
        found.append(f"{int(match[1])}/{match[2] or 'http'}")
    return ",".join(dict.fromkeys(found))


def _cuda(given: str, image: str) -> str:
    """An image made for a newer CUDA than its machine's driver knows never starts, and bills."""
    if given.strip().lower() == "none":
        return ""
    if given and not CUDA.fullmatch(given.strip()):
        raise UsageError(f"--min-cuda {given} is no version of CUDA", "write it like 12.8, or none")
    return given.strip() or cuda_of(image)
