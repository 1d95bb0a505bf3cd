"""Slurm's own flags, and a request checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.errors import UsageError
from gpuops.core.models import Option, Request
from provisioners.ssh.placement import refuse_rental_flags

OPTIONS: Sequence[Option] = (
    Option(
        "host",
        "The cluster's login node: user@address:port, or a name from your ~/.ssh/config. Without: this machine is it.",
    ),
    Option("identity", "The private key to log in with.", "path"),
    Option("accept-new", "Trust the key of a host that was never met before.", "bool", default=False),
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
OURS = ("--job-name", "-J", "--nodes", "-N", "--output", "-o", "--export", "--parsable", "--array", "-a", "--wrap")
"""What gpuops needs to be as it is."""


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
    refuse_rental_flags(request, "the cluster decides that", ", or use --partition and --constraint", but="--gpu-type")
    options: Mapping[str, Any] = request.options
    words = {name: str(options[name]) for name in SINGLE_WORDS if options.get(name) is not None}
    for name, value in words.items():
        if not value.strip() or any(sign in value for sign in "\0\n\r"):
            raise UsageError(f"--{name} is empty or more than one line", f"give --{name} a value, or leave it out")
    cpus = options.get("cpus")
    if cpus is not None and cpus < 1:
        raise UsageError(f"--cpus {cpus} is too few", "--cpus takes a number from 1")
    raw = [str(word) for word in options.get("sbatch-arg") or ()]
    for word in raw:
        if not word.startswith("-") or word.split("=")[0] in OURS:
            raise UsageError(f"--sbatch-arg {word} cannot be", "write it as --sbatch-arg=--name=value; see the docs")
    return Wishes(request.nodes, request.gpus, request.gpu_type or "", request.max_hours, cpus, words, raw)
