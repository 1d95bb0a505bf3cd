"""What only RunPod can be asked for, and one request of ours as RunPod's nouns. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.errors import UsageError
from gpuops.models import Option, Request

CLUSTER_GPUS = 8
"""GPUs of a cluster's node where none are asked for: machines of so many are what clusters are known to be made of."""
CLUSTER_MOST = 250
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
DISK_GB = 100
CLOUDS = ("secure", "community")
OPTIONS: Sequence[Option] = (
    Option(
        "cloud",
        "secure (data centers, the default) or community (cheaper; other people's machines, whose owners can see what "
        "is on them, without network volumes and not all with a public address).",
        default="secure",
    ),
    Option("disk", "GB of the pod's own disk, which is gone with the pod.", "int", default=DISK_GB),
    Option("volume", "A network volume, by name or id: mounted at /workspace, in its own data center."),
    Option(
        "min-cuda", "The oldest CUDA that the machine's driver may know (12.8), or none; without, as the image says."
    ),
)
CUDA = re.compile(r"\d+\.\d+")
OF_IMAGE = re.compile(r"(?<![a-z])cu(?:da)?[-_:]?(\d\d)\.?(\d)")
"""`cu1281`, `cu128`, `cuda12.8.1`, `nvidia/cuda:12.8.1-devel`."""


@dataclass(frozen=True)
class Wishes:
    """A request, checked: nothing of it is unclear, and nothing was asked of RunPod yet."""

    nodes: int
    gpus: int
    """Per node."""
    cloud: str
    """SECURE or COMMUNITY."""
    disk: int
    volume: str
    image: str
    cuda: str
    """`12.8`; empty: any."""


def wishes(request: Request) -> Wishes:
    """Raises UsageError for what makes no sense anywhere."""
    given = request.options
    cloud = str(given.get("cloud") or "secure").strip().lower()
    disk = DISK_GB if given.get("disk") is None else int(given["disk"])
    volume = str(given.get("volume") or "").strip()
    image = (request.image or IMAGE).strip()
    together = request.nodes > 1
    gpus = 1 if request.gpus is None else request.gpus
    if together and request.gpus is None:
        raise UsageError(
            f"{request.nodes} nodes of how many GPUs each?",
            f"--gpus {CLUSTER_GPUS} is what RunPod's clusters usually are made of, and say --max-price",
        )
    if cloud not in CLOUDS:
        raise UsageError(f"RunPod has no cloud '{cloud}'", f"--cloud is {' or '.join(CLOUDS)}")
    if gpus < 1:
        raise UsageError("a pod has at least one GPU", "leave out --gpus, or ask for 1 and more")
    if disk < 1:
        raise UsageError(f"a disk of {disk} GB is none", "--disk is in GB, 1 and more")
    if volume and cloud == "community":
        raise UsageError("community cloud has no network volumes", "leave out --volume, or --cloud community")
    if together and cloud == "community":
        raise UsageError("community cloud has no clusters", "leave out --cloud, or ask for one node")
    if together and given.get("min-cuda"):
        raise UsageError("RunPod takes no --min-cuda for a cluster", "leave it out, or ask for one node")
    if request.nodes > CLUSTER_MOST:
        raise UsageError(f"a cluster of {request.nodes} is too large", f"RunPod's have at most {CLUSTER_MOST} nodes")
    if not image or re.search(r"\s", image):
        raise UsageError(f"'{image}' is not the name of an image", f"write it like {IMAGE}")
    cuda = "" if together else _cuda(str(given.get("min-cuda") or ""), image)
    return Wishes(request.nodes, gpus, cloud.upper(), disk, volume, image, cuda)


def _cuda(given: str, image: str) -> str:
    """An image made for a newer CUDA than its machine's driver knows never starts, and bills."""
    if given.strip().lower() == "none":
        return ""
    if given and not CUDA.fullmatch(given.strip()):
        raise UsageError(f"--min-cuda {given} is no version of CUDA", "write it like 12.8, or none")
    return given.strip() or cuda_of(image)


def cuda_of(image: str) -> str:
    """The CUDA that an image's name tells of; empty where it tells nothing."""
    match = OF_IMAGE.search(image.lower())
    return f"{match[1]}.{match[2]}" if match else ""
