"""The reference training programs that come along: which there are, and where their files lie here.

In a checkout they are in `train/` beside the package, in an installed wheel in `gpuops/train/`
(a top-level `train` would shadow users' own). The folder is pushed whole; nothing in it is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gpuops.core.errors import UsageError


class Workload(NamedTuple):
    """What to know of a program before it is sent anywhere."""

    line: str
    """For people."""
    reads: bool = False
    """Whether it reads data that do not come along: from a folder, or else downloaded."""


WORKLOADS = {
    "toy": Workload("a linear layer on 2,048 random samples: one line per rank and epoch"),
    "digits": Workload("reads handwritten digits, which come along, in seconds (the default)"),
    "mnist": Workload("a small convolutional network on MNIST (12 MB to download)", reads=True),
    "cifar10": Workload("ResNet-18 on CIFAR-10 (170 MB to download)", reads=True),
    "movielens": Workload("a recommender on MovieLens small (1 MB to download)", reads=True),
}
"""By name, in the order in which one learns from them."""

DEFAULT = "digits"
"""What `train` runs when no script is named."""


def names() -> list[str]:
    """Every workload that `--workload` knows, in the order in which they are shown."""
    return list(WORKLOADS)


def folder(package: Path = Path(__file__).parents[1]) -> Path:
    """The folder to push, given where the package `gpuops` lies. Raises UsageError when it is missing."""
    for candidate in (package / "train", package.parent / "train"):
        if all((candidate / script(name)).is_file() for name in names()):
            return candidate
    raise UsageError("this installation of gpuops lacks its workloads", "install gpuops again, or name a script")


def script(name: str) -> str:
    """The program's path relative to `folder()`. Raises UsageError for an unknown name."""
    if name not in WORKLOADS:
        import difflib

        near = difflib.get_close_matches(name, names(), 1)
        raise UsageError(
            f"there is no workload named '{name}'" + (f"; did you mean {near[0]}?" if near else ""),
            f"choose one of: {', '.join(names())}",
        )
    return f"{name}.py"
