"""Which build of torch runs on which GPU with which driver: published tables, and what follows from them. Pure.

`None` as an answer means that the tables do not know: whoever asks then complains of nothing.

Sources, read in 2026. Drivers: NVIDIA, "CUDA Compatibility", minor version compatibility, table 1 (13.x from 580,
12.x from 525, 11.x from 450), with the exact versions of the CUDA Toolkit's release notes (525.60.13, 450.80.02).
What runs where: NVIDIA, "Blackwell Compatibility Guide", 1.2: binary code runs on GPUs of its own generation (major
number) with the same or a higher minor number; PTX is compiled for any later GPU. Kernels in PyTorch's own
wheels for Linux: pytorch/builder, `manywheel/build_cuda.sh`, branches release/2.0 to release/2.5;
pytorch/pytorch, `.ci/manywheel/build_cuda.sh` and the support matrix in RELEASE.md from 2.6 on. CUDA 12.8 has
changed three times: no Volta in 2.7 (pytorch pull request 147607), Volta in 2.8 to 2.10 (issue 157517, pull request
164471), none from 2.11 on (issue 172352; issue 182250 shows the lists of 2.10 and 2.11). cu128 ended with 2.11
(issue 178665), cu126 ends with 2.14 (issue 190385). First and last torch of cu118, cu121 and cu124: PyTorch's
"previous versions" page. cu129 from 2.12 on: pull request 188443.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuops.transport.schemas import Gpu

INDEX = "https://download.pytorch.org/whl/"
CPU_INDEX = f"{INDEX}cpu"
EVER = (99, 0)

Capability = tuple[int, int]
"""A GPU's generation, as NVIDIA numbers it: (8, 6)."""


def _capabilities(text: str) -> tuple[Capability, ...]:
    return tuple((int(major), int(minor)) for major, _, minor in (word.partition(".") for word in text.split()))


KEPLER = _capabilities("3.7")
TO_AMPERE = _capabilities("5.0 6.0 7.0 7.5 8.0 8.6")
HOPPER = _capabilities("9.0")
VOLTA = _capabilities("7.0")
TO_BLACKWELL = _capabilities("7.5 8.0 8.6 9.0 10.0 12.0")
ELSEWHERE = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (11, 0)})
"""Jetson and Thor: their wheels are not these."""


@dataclass(frozen=True)
class Wheel:
    """PyTorch's own wheels for one CUDA, from torch `first` to `last`: what they hold kernels for, and whether the
    newest of that is there as PTX as well."""

    tag: str
    first: tuple[int, int]
    last: tuple[int, int]
    kernels: tuple[Capability, ...]
    ptx: bool = False


WHEELS = (
    Wheel("cu132", (2, 12), EVER, TO_BLACKWELL, ptx=True),
    Wheel("cu130", (2, 9), EVER, TO_BLACKWELL, ptx=True),
    Wheel("cu129", (2, 12), EVER, TO_BLACKWELL, ptx=True),
    Wheel("cu129", (2, 8), (2, 8), VOLTA + TO_BLACKWELL, ptx=True),
    Wheel("cu128", (2, 11), (2, 11), TO_BLACKWELL),
    Wheel("cu128", (2, 8), (2, 10), VOLTA + TO_BLACKWELL),
    Wheel("cu128", (2, 7), (2, 7), TO_BLACKWELL, ptx=True),
    Wheel("cu126", (2, 6), (2, 14), TO_AMPERE + HOPPER),
    Wheel("cu124", (2, 4), (2, 6), TO_AMPERE + HOPPER),
    Wheel("cu121", (2, 1), (2, 5), TO_AMPERE + HOPPER),
    Wheel("cu118", (2, 0), (2, 7), KEPLER + TO_AMPERE + HOPPER),
    Wheel("cu117", (1, 13), (2, 0), KEPLER + TO_AMPERE),
)
"""Of each tag the newest first."""
CHOICE = (("cu130", 580), ("cu128", 570), ("cu126", 525), ("cu124", 525), ("cu121", 525), ("cu118", 450))
"""What to install, best first, and the driver (major version) from which on. cu128 is kept for drivers of its own
generation, since it is chosen for Blackwell, which needs 570."""
DRIVERS = {13: (580,), 12: (525, 60, 13), 11: (450, 80, 2)}
"""The oldest driver for any CUDA of a major version."""
OFFICIAL = re.compile(r"(\d+)\.(\d+)\.\d+(?:\.post\d+)?\+(cu\d+)")
"""A version that PyTorch's own wheels carry; who builds torch otherwise chooses the kernels."""


def numbers(text: object) -> tuple[int, ...]:
    """The numbers that a version begins with: `550.54.15` -> (550, 54, 15); empty where there are none."""
    match = re.match(r"\d+(\.\d+)*", str(text or ""))
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def capability(text: object) -> Capability | None:
    found = numbers(text)
    return (found[0], found[1]) if len(found) == 2 else None


def has_kernels(wheel: Wheel, gpu: Capability) -> bool | None:
    """Whether a wheel's code runs on a GPU; None where only PTX might, or other wheels are meant for it."""
    if any(own[0] == gpu[0] and own[1] <= gpu[1] for own in wheel.kernels):
        return True
    if gpu in ELSEWHERE or (wheel.ptx and gpu > wheel.kernels[-1]):
        return None
    return False


def wheel_of(tag: str, version: tuple[int, int] | None) -> Wheel | None:
    """The row for a torch (major, minor); without one, of the newest, which is what pip takes."""
    rows = [wheel for wheel in WHEELS if wheel.tag == tag]
    return next((row for row in rows if version is None or row.first <= version <= row.last), None)


def choose(driver: int, gpus: Sequence[Capability], version: tuple[int, int] | None = None) -> str | None:
    """The tag of the wheels to install for these GPUs; None where none is known to fit."""
    for tag, oldest in CHOICE:
        wheel = wheel_of(tag, version)
        if driver >= oldest and wheel is not None and all(has_kernels(wheel, gpu) is not False for gpu in gpus):
            return tag
    return None


class MisfitKind(StrEnum):
    """What a torch lacks."""

    CPU = "cpu"
    KERNELS = "kernels"
    DRIVER = "driver"


@dataclass(frozen=True)
class Misfit:
    """Why a torch will not run on GPUs."""

    kind: MisfitKind
    say: str
    hint: str


def find_misfit(torch: str, cuda: str | None, gpus: Sequence[Gpu], python: str = "python") -> Misfit | None:
    """What the tables have against this torch of `python` on these GPUs; None: nothing known."""
    if not gpus:
        return None
    if not cuda:
        return Misfit(
            MisfitKind.CPU, f"torch {torch} is built without CUDA: its ranks train on the CPU", _advice(gpus, python)
        )
    return _no_driver(torch, cuda, gpus, python) or _no_kernels(torch, gpus, python)


def _no_driver(torch: str, cuda: str, gpus: Sequence[Gpu], python: str) -> Misfit | None:
    least = DRIVERS.get((numbers(cuda) or (0,))[0])
    driver = numbers(gpus[0].driver)
    if not least or not driver or driver >= least:
        return None
    needs = ".".join(f"{part:02}" if place else str(part) for place, part in enumerate(least))
    say = f"torch {torch} needs NVIDIA's driver {needs} or later, and {gpus[0].driver} is there"
    return Misfit(MisfitKind.DRIVER, say, f"update the driver, or {_advice(gpus, python)}")


def _no_kernels(torch: str, gpus: Sequence[Gpu], python: str) -> Misfit | None:
    official = OFFICIAL.fullmatch(torch)
    wheel = wheel_of(official[3], (int(official[1]), int(official[2]))) if official else None
    for gpu in gpus if wheel else ():
        generation = capability(gpu.compute_cap)
        if wheel and generation and has_kernels(wheel, generation) is False:
            called = f"{gpu.name or 'this GPU'} (compute capability {gpu.compute_cap})"
            return Misfit(MisfitKind.KERNELS, f"torch {torch} has no kernels for {called}", _advice(gpus, python))
    return None


def _advice(gpus: Sequence[Gpu], python: str) -> str:
    """The torch to install there."""
    drivers = [numbers(gpu.driver) for gpu in gpus]
    generations = [found for gpu in gpus if (found := capability(gpu.compute_cap))]
    tag = choose(min(drivers)[0], generations) if all(drivers) and generations else None
    if tag is None:
        return "install a torch that was built for these GPUs and this driver"
    return f"install another: {python} -m pip install --force-reinstall torch --index-url {INDEX}{tag}"
