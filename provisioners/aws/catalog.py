"""AWS's instance types, and which of them a request means: those with whole NVIDIA GPUs, or any for x86 by its name.
Pure, but for two questions.

Nothing of a type is known beforehand: how many GPUs and vCPUs it has is what DescribeInstanceTypes says (the size in a
name does not tell: g4dn.16xlarge has one GPU, g4dn.12xlarge four).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gpuops.core.errors import UsageError
from gpuops.core.format import plural
from gpuops.core.names import did_you_mean
from provisioners.aws.account import Account
from provisioners.aws.api import Document, pages
from provisioners.aws.options import CPU
from provisioners.kit.gpu_names import is_only_by_name, join_names, match_gpu, split_wish

GPU_FAMILIES = ("g*", "p*", "vt*")
"""Whose vCPUs are counted as those of GPUs (`quotas`). All else, over a thousand types, need not be listed."""
X86 = "x86_64"
"""The default images are built for it."""
ARM_REASON = "has an ARM processor, and the images that gpuops starts are for x86"
PAGE_SIZE = 100
OTHER_REGIONS_HINT = "look in other regions: --region A,B"


@dataclass(frozen=True)
class InstanceType:
    """One instance type."""

    type: str
    gpus: int
    """Whole NVIDIA GPUs; 0 where there is none that could be rented for training."""
    gpu: str
    """AWS's name for it: `A10G`."""
    memory: int
    """GB of one GPU, as its maker counts them."""
    vcpus: int
    markets: tuple[str, ...]
    """`on-demand`, `spot`."""
    unfit: str = ""
    """Why it cannot be used, not even without its GPU; empty where it can."""

    @property
    def say(self) -> str:
        """What is in it."""
        return f"{self.gpus} x {self.gpu}, {self.memory} GB each" if self.gpus else f"{self.vcpus} vCPU, no GPU"


def parse_instance_type(document: Document) -> InstanceType:
    """One type of DescribeInstanceTypes' answer."""
    listed = (document.get("GpuInfo") or {}).get("Gpus") or []
    counts = [int(item.get("Count") or 0) for item in listed]  # a slice of one counts 0
    whole = all(counts) and all(item.get("Manufacturer") == "NVIDIA" for item in listed)
    first = listed[0] if listed else {}
    unfit = ""
    if X86 not in (document.get("ProcessorInfo") or {}).get("SupportedArchitectures", ()):
        unfit = ARM_REASON
    elif document.get("BareMetal"):
        unfit = "is bare metal, which gpuops does not rent"
    elif not whole:
        unfit = "has no whole NVIDIA GPU that gpuops can train on"
    return InstanceType(
        type=str(document["InstanceType"]),
        gpus=0 if unfit else sum(counts),
        gpu=str(first.get("Name") or ""),
        memory=memory_gb(int((first.get("MemoryInfo") or {}).get("SizeInMiB") or 0)),
        vcpus=int((document.get("VCpuInfo") or {}).get("DefaultVCpus") or 0),
        markets=tuple(str(item) for item in document.get("SupportedUsageClasses") or ()),
        unfit=unfit,
    )


def memory_gb(mebibytes: int) -> int:
    """A GPU's memory as it is spoken of: AWS has some in GiB (T4: 16384 MiB), some in GB (A10G: 22888 MiB, 24 GB)."""
    return mebibytes // 1024 if mebibytes % 1024 == 0 else round(mebibytes * 1.048576 / 1000)


def select_instance_types(
    kinds: Collection[InstanceType],
    *,
    gpus: int | None,
    gpu_type: str | None,
    gpu_mem: int | None,
    market: str,
    types: tuple[str, ...] = (),
    where: str = "there",
) -> list[InstanceType]:
    """Those a request speaks of, by name. Raises UsageError where it means none, or what it means is unclear.

    types   names of types, which may be without a GPU.
    where   `in us-east-1`, for people.
    """
    whole = sorted((kind for kind in kinds if kind.gpus), key=lambda kind: kind.type)
    if types:
        available = {kind.type for kind in kinds}
        any_of_them = [name for name in types if name in available] if types == CPU else []
        named = [_find_type(kinds, name, where) for name in any_of_them or types]
    else:
        named = (
            _match_gpu_types(kinds, whole, gpu_type, where)
            if gpu_type
            else [kind for kind in whole if not is_legacy(kind)]
        )
    if not named:
        raise UsageError(f"AWS has no instance type with a GPU {where}", OTHER_REGIONS_HINT)
    literal = bool(types) or (bool(gpu_type) and all("." in item for item in split_wish(str(gpu_type))))
    wanted = gpus or (0 if literal else 1)
    fitting = [kind for kind in named if kind.gpus == wanted] if wanted else named
    if not fitting:
        raise _gpu_count_error(named, wanted, gpu_type)
    large = [kind for kind in fitting if kind.memory >= (gpu_mem or 0)]
    if not large:
        most = max(kind.memory for kind in fitting)
        raise UsageError(
            f"no instance type with {wanted} x {gpu_type or 'GPU'} has {gpu_mem} GB of memory in each: "
            f"the most is {most} GB",
            "ask for less with --gpu-mem, or for another --gpu-type",
        )
    here = [kind for kind in large if market in kind.markets]
    if not here:
        names = join_names(kind.type for kind in large)
        raise UsageError(
            f"AWS has no {names} {_market_phrase(market)}", "leave out --spot" if market == "spot" else "say --spot"
        )
    return here


def _market_phrase(market: str) -> str:
    return "as spot instances" if market == "spot" else "on demand"


def _gpu_count_error(named: Sequence[InstanceType], wanted: int, gpu_type: str | None) -> UsageError:
    counts = sorted({kind.gpus for kind in named})
    if not any(counts):
        names = join_names(kind.type for kind in named)
        return UsageError(
            f"{names} has no GPU, and --gpus asks for {wanted}", "leave out --gpus, or name a type with GPUs"
        )
    if len(named) == 1:
        only = named[0]
        return UsageError(f"{only.type} has {plural(only.gpus, 'GPU')}, not {wanted}", f"ask for --gpus {only.gpus}")
    with_gpu = f" with {gpu_type}" if gpu_type else " with GPUs"
    numbers = ", ".join(map(str, counts))
    enough = [count for count in counts if count > wanted]
    instead = f"--gpus {enough[0]}" if enough else f"--gpus {max(counts)} and more --nodes"
    return UsageError(
        f"no instance type{with_gpu} has {wanted} of them: they have {numbers}",
        f"ask for {instead}, or another --gpu-type",
    )


def _match_gpu_types(
    kinds: Iterable[InstanceType], whole: Sequence[InstanceType], wish: str, where: str
) -> list[InstanceType]:
    found = [
        kind
        for item in split_wish(wish)
        for kind in (_find_type_with_gpu(kinds, item, where) if "." in item else _match_gpu(whole, item, where))
    ]
    return list(dict.fromkeys(found))


def _find_type(kinds: Iterable[InstanceType], name: str, where: str) -> InstanceType:
    """The type of that name, with GPUs or without."""
    by_name = {kind.type: kind for kind in kinds}
    kind, fit = by_name.get(name), [item.type for item in by_name.values() if not item.unfit]
    if kind is None:
        near = did_you_mean(name, fit, 3)
        raise UsageError(f"AWS has no instance type '{name}' {where}", (near and f"{near} Or ") + OTHER_REGIONS_HINT)
    if kind.unfit:
        other = next((item for item in x86_siblings(name) if item in fit), "")
        hint = f"its sibling for x86 is {other}: --instance-type {other}" if other else "name another --instance-type"
        raise UsageError(f"{name} {kind.unfit}", hint)
    return kind


def x86_siblings(type: str) -> list[str]:
    """What one for ARM may be called for x86, whether there is such a type or not: c7gd.large is c7id.large."""
    match = re.fullmatch(r"([a-z]+)(\d+)g([a-z]*)\.(.+)", type)
    if match is None:
        return []
    letters, generation, more, size = match.groups()
    if letters == "t":
        return [f"t3.{size}"]
    numbers = range(int(generation), max(int(generation) - 2, 0), -1)
    return [f"{letters}{number}{maker}{more}.{size}" for number in numbers for maker in ("i", "a", "")]


def _find_type_with_gpu(kinds: Iterable[InstanceType], name: str, where: str) -> list[InstanceType]:
    """The one type of that name."""
    by_name = {kind.type: kind for kind in kinds}
    kind = by_name.get(name.lower())
    if kind is None:
        near = did_you_mean(name, [item for item, kind in by_name.items() if kind.gpus], 3)
        hint = f"{near} Or" if near else "name a GPU instead (--gpu-type a10g), or"
        raise UsageError(f"AWS has no instance type '{name}' with a GPU {where}", f"{hint} {OTHER_REGIONS_HINT}")
    if not kind.gpus:
        raise UsageError(
            f"{kind.type} has no whole NVIDIA GPU that gpuops can train on",
            "bare metal, ARM, AMD and slices of a GPU are left out: name another --gpu-type",
        )
    return [kind]


def _match_gpu(whole: Sequence[InstanceType], name: str, where: str) -> list[InstanceType]:
    """Every type with the one GPU that a name means: `a10g`, `rtx pro 6000`, `a100 80gb`."""
    return match_gpu(
        whole,
        name,
        "AWS",
        name=lambda kind: kind.gpu,
        aliases=lambda kind: [f"{kind.gpu} {kind.memory}gb"],
        where=where,
    )


def is_legacy(kind: InstanceType) -> bool:
    return is_only_by_name(kind.gpu)


# Questions.


def list_instance_types(account: Account, region: str, types: Sequence[str]) -> dict[str, InstanceType]:
    """Every type of the families with GPUs that a region has, by name; those without a whole NVIDIA GPU as well, for
    their vCPUs count too. `types`: names of further ones, whose families are asked for, too. Raises ProviderError."""
    named = [name for item in types for name in (item, *x86_siblings(item))]
    further = {name.partition(".")[0] + ".*" for name in named}
    listed = pages(
        "list instance types",
        account.client("ec2", region),
        "describe_instance_types",
        "InstanceTypes",
        Filters=[{"Name": "instance-type", "Values": [*GPU_FAMILIES, *sorted(further)]}],
        MaxResults=PAGE_SIZE,
    )
    found = [parse_instance_type(item) for item in listed]
    return {kind.type: kind for kind in found}


def list_zones_by_type(account: Account, region: str, types: Iterable[str]) -> dict[str, set[str]]:
    """In which zones each type is offered at all. Raises ProviderError."""
    listed = pages(
        "see which zones have which types",
        account.client("ec2", region),
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": sorted(types)}],
    )
    found: dict[str, set[str]] = {}
    for item in listed:
        found.setdefault(str(item["InstanceType"]), set()).add(str(item["Location"]))
    return found
