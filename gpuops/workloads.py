"""The reference training programs that come along: which there are, and where their files lie here.

In a checkout they are in `train/` beside the package, in an installed wheel in `gpuops/train/`
(a top-level `train` would shadow users' own). The folder is pushed whole; nothing in it is imported.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from gpuops.errors import UsageError

WORKLOADS = {
    "digits": "learns to read handwritten digits (real data, 20 epochs in seconds)",
    "toy": "the tutorials' linear layer on random numbers: 2,048 samples, one line per rank and epoch",
}
"""Name to one line for people."""

DEFAULT = "digits"
"""What `train` runs when no script is named."""


def names() -> list[str]:
    """Every workload that `--workload` knows, in the order in which they are shown."""
    return list(WORKLOADS)


def folder(package: Path = Path(__file__).parent) -> Path:
    """The folder to push, given where the package `gpuops` lies. Raises UsageError when it is missing."""
    for candidate in (package / "train", package.parent / "train"):
        if all((candidate / script(name)).is_file() for name in names()):
            return candidate
    raise UsageError("this installation of gpuops lacks its workloads", "install gpuops again, or name a script")


def script(name: str) -> str:
    """The program's path relative to `folder()`. Raises UsageError for an unknown name."""
    if name not in WORKLOADS:
        near = difflib.get_close_matches(name, names(), 1)
        raise UsageError(
            f"there is no workload named '{name}'" + (f"; did you mean {near[0]}?" if near else ""),
            f"choose one of: {', '.join(names())}",
        )
    return f"{name}.py"
