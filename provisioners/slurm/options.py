"""Slurm's own flags, and a request checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.models import Option, Request
from provisioners.batch.request import LOGIN_OPTIONS, cores, raw_words, single_words
from provisioners.ssh.placement import refuse_rental_flags

OPTIONS: Sequence[Option] = (
    *LOGIN_OPTIONS,
    Option("partition", "The partition; without, the cluster's default."),
    Option("account", "The account that is charged; without, your default."),
    Option("qos", "The quality of service."),
    Option("constraint", "What nodes must have: a100, or an expression of Slurm's."),
    Option("reservation", "The reservation to run in."),
    Option("cpus", "Cores of each node; without, as large a share as that of its GPUs, or all.", "int"),
    Option("mem", "Memory of each node, as Slurm writes it: 64G; without, the partition's default."),
    Option("sbatch-arg", "One more argument of sbatch's, as it is: --sbatch-arg=--exclusive. Repeatable.", "list"),
)
SINGLE_WORDS = ("partition", "account", "qos", "constraint", "reservation", "mem")
OURS = (
    "--job-name", "--nodes", "--ntasks", "--ntasks-per-node", "--output", "--export", "--parsable", "--array", "--wrap",
    "--clusters", "--wait", "--requeue", "--test-only",
)  # fmt: skip
"""What gpuops needs to be as it is. sbatch takes the beginning of a name for the name."""
OUR_LETTERS = frozenset("JNnoaMW")
FLAGS = "HIkOQsv"
"""Letters that take no value: another may follow in the same word."""


@dataclass(frozen=True)
class Wishes:
    """A checked request."""

    nodes: int
    gpus: int | None
    """Per node; None: all that a node has."""
    gpu_type: str
    hours: float | None
    cpus: int | None
    words: Mapping[str, str]
    """Of SINGLE_WORDS, those that were given."""
    raw: Sequence[str]

    @property
    def partition(self) -> str:
        return self.words.get("partition", "")


def parse_wishes(request: Request) -> Wishes:
    """Raises UsageError."""
    refuse_rental_flags(
        request, "the cluster decides that", ", or use --partition and --constraint", but=("--gpu-type", "--image")
    )
    options: Mapping[str, Any] = request.options
    raw = raw_words(options, "sbatch-arg", _is_ours, "--name=value")
    words = single_words(options, SINGLE_WORDS)
    return Wishes(request.nodes, request.gpus, request.gpu_type or "", request.max_hours, cores(options), words, raw)


def _is_ours(word: str) -> bool:
    if word.startswith("--"):
        return any(name.startswith(word.split("=")[0]) for name in OURS)
    return word.lstrip(f"-{FLAGS}")[:1] in OUR_LETTERS
