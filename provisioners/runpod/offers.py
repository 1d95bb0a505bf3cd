"""From the catalog to offers, in the order in which they are tried. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gpuops.core.errors import NoCapacity, UsageError
from gpuops.core.models import Offer, Price
from provisioners.kit.gpu_names import split_wish
from provisioners.kit.machine_offer import MAX_OFFERS, MachineOffer
from provisioners.runpod.catalog import Gpu, Volume, level_rank
from provisioners.runpod.launch import PodSpec
from provisioners.runpod.options import CLUSTER_IMAGE, IMAGE, Wishes

NOT_BY_THEMSELVES = (
    "RunPod does not say whether a cluster's pods may end it by themselves: the guard on this computer does, while it "
    "is on; else `gpuops down`"
)
OF_PODS = "RunPod does not tell now what a cluster costs: this is the price of single pods, and a cluster's may differ"
UNCHECKED = "whether its machine has {} RunPod does not tell now: a pod may have less"
NETWORK = "RunPod bills the network between a cluster's pods on top, and tells how much only once there is one"
DISK_MONTHLY = 0.10
"""$ a month for a GB of a running pod's disk."""
MONTH_H = 720.0
NEW_ACCOUNT_LIMIT_HOURLY = 80.0
"""$/h that an account may spend until its owner asks for more."""


def disk_price(gigabytes: float) -> float:
    """$/h of a pod's own disk while it runs."""
    return gigabytes * DISK_MONTHLY / MONTH_H


def offers(gpus: Sequence[Gpu], wishes: Wishes, centers: Sequence[str], volume: Volume | None) -> list[Offer]:
    """One for each kind that is free. Raises NoCapacity, UsageError where that is none, with the reason.

    `centers`: where it must be; empty: anywhere.
    """
    _check_maker(gpus, wishes)
    fitting = [gpu for gpu in gpus if not gpu.most or gpu.most >= wishes.gpus]
    cloud = f"{wishes.cloud.lower()} cloud"
    if not fitting:
        most = max(gpu.most for gpu in gpus)
        raise UsageError(
            f"no machine of RunPod's {cloud} has {wishes.gpus} x {_names(gpus)}: the most is {most}",
            f"ask for --gpus {most}, or another --gpu-type",
        )
    least = f" with {wishes.least}" if wishes.least else ""
    free = [gpu for gpu in fitting if gpu.level != "NONE"]
    if not free:
        where = f" in {', '.join(centers)}" if centers else ""
        what = f"{wishes.gpus} x {_names(fitting)} free now in its {cloud}{where}{least}"
        many = f"cluster of {wishes.nodes} times " if wishes.nodes > 1 else ""
        raise NoCapacity(
            f"RunPod has no {many}{what}", "ask for another GPU or region, or fewer of them, or try again later"
        )
    ranked = sorted(free, key=lambda gpu: (gpu.price, -level_rank(gpu.level), gpu.name))[:MAX_OFFERS]
    taken = [gpu for gpu in fitting if gpu.level == "NONE"]
    made = [_offer(gpu, wishes, centers, volume) for gpu in ranked]
    if taken and len(gpus) <= MAX_OFFERS:
        note = f"none free now{least}, and not tried: {_names(taken)}"
        made[0] = dataclasses.replace(made[0], notes=(*made[0].notes, note))
    return made


def _offer(gpu: Gpu, wishes: Wishes, centers: Sequence[str], volume: Volume | None) -> Offer:
    cloud, nodes = wishes.cloud.lower(), wishes.nodes
    count = f"{wishes.gpus} x {gpu.name} ({gpu.memory} GB each)"
    machines = f"{nodes} pods in one cluster, each {count}" if nodes > 1 else f"1 pod, {count}"
    stock = f"stock {gpu.level.lower()}" if gpu.level else ""
    at = [place.id for place in gpu.places] if centers else []  # else RunPod puts it where it likes
    where = at[0] + (f" or {len(at) - 1} more" if len(at) > 1 else "") if at else ""
    prices = (
        Price(f"{wishes.gpus * nodes} x {gpu.name}", round(gpu.price * wishes.gpus * nodes, 6)),
        Price(f"{wishes.disk * nodes} GB disk", disk_price(wishes.disk * nodes)),
    )
    return MachineOffer(
        id=f"{gpu.id}/{'cluster' if nodes > 1 else cloud}",
        say=", ".join(part for part in (machines, f"{cloud} cloud", where, stock) if part),
        prices=prices,
        gpu=gpu.name,
        gpus=wishes.gpus,
        memory=gpu.memory,
        where=", ".join(filter(None, [f"{cloud} cloud", where])),
        nodes=nodes,
        vcpus=gpu.vcpus,
        ram=gpu.ram,
        disk=wishes.disk,
        private=wishes.cloud == "COMMUNITY",
        notes=_notes(gpu, sum(price.per_hour for price in prices), wishes, volume),
        columns={"CLOUD": cloud, "DATA CENTER": where},
        more_columns={
            "STOCK": gpu.level.lower(),
            **({"RAM": f"{gpu.ram:g} GB"} if gpu.ram else {}),
            **({"VCPU": f"{gpu.vcpus:g}"} if gpu.vcpus else {}),
        },
    ).build("runpod", memory=gpu.memory, **_pod_spec(gpu, wishes, centers, volume).document())


def _pod_spec(gpu: Gpu, wishes: Wishes, centers: Sequence[str], volume: Volume | None) -> PodSpec:
    return PodSpec(
        nodes=wishes.nodes,
        gpu=gpu.id,
        gpu_name=gpu.name,
        count=wishes.gpus,
        cloud=wishes.cloud,
        centers=tuple(centers),
        disk=wishes.disk,
        image=wishes.image,
        template=wishes.template,
        registry=wishes.registry,
        ports=tuple(split_wish(wishes.ports)),
        cuda=wishes.min_cuda if gpu.maker != "AMD" else "",
        volume=volume.id if volume else "",
        volume_name=volume.name if volume else "",
    )


def _notes(gpu: Gpu, per_hour: float, wishes: Wishes, volume: Volume | None) -> list[str]:
    nodes, notes = wishes.nodes, []
    if wishes.least and not (gpu.ram and gpu.vcpus):
        notes.append(UNCHECKED.format(wishes.least))
    if volume:
        notes.append(f"the network volume {volume.name} is at /workspace; it costs money with a pod or without")
    if nodes > 1:
        notes.append(NOT_BY_THEMSELVES)
        notes.append(f"{OF_PODS}; {NETWORK}" if gpu.price_of else NETWORK)
    if nodes > 1 and per_hour > NEW_ACCOUNT_LIMIT_HOURLY:
        notes.append(
            f"RunPod lets a new account spend ${NEW_ACCOUNT_LIMIT_HOURLY:.0f}/h at most, until its support raises that"
        )
    return notes


def _check_maker(gpus: Sequence[Gpu], wishes: Wishes) -> None:
    """Raises UsageError for AMD's GPUs with the default image, which is for NVIDIA's."""
    amd = [gpu for gpu in gpus if gpu.maker == "AMD"]
    if amd and wishes.image in (IMAGE, CLUSTER_IMAGE):
        raise UsageError(
            f"{amd[0].name} is AMD's, and the image {wishes.image} is for NVIDIA's", "name an image with ROCm: --image"
        )


def _names(gpus: Sequence[Gpu]) -> str:
    names = [gpu.name for gpu in gpus]
    return ", ".join(names[:3]) + (f" or {len(names) - 3} others" if len(names) > 3 else "")
