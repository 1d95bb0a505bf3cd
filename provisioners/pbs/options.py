"""PBS's own flags, and a request checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuops.core.errors import UsageError
from gpuops.core.models import Option, Request
from provisioners.batch.request import LOGIN_OPTIONS, cores, raw_words, single_words
from provisioners.ssh.placement import refuse_rental_flags

OPTIONS: Sequence[Option] = (
    *LOGIN_OPTIONS,
    Option("queue", "The queue; without, the cluster's default."),
    Option("account", "The account that is charged; without, your default."),
    Option("cpus", "Cores of each node; without, as large a share as that of its GPUs, or all.", "int"),
    Option("mem", "Memory of each node, as PBS writes it: 64gb; without, as large a share as that of its cores."),
    Option("select-extra", "What each node must have besides, as PBS selects it: gpu_model=v100. Repeatable.", "list"),
    Option("qsub-arg", "One more argument of qsub's, as it is: --qsub-arg=-lsoftware=x. Repeatable.", "list"),
)
SINGLE_WORDS = ("queue", "account", "mem")
OURS = frozenset("NoejkJIXVrSCzqA")
"""What gpuops needs to be as it is, and what has an option of its own."""
FLAGS = "hf"
"""Letters that take no value: another may follow in the same word."""
OUR_RESOURCES = ("select", "place", "walltime", "nodes")
OUR_PARTS = ("ncpus", "ngpus", "mem", "mpiprocs")
"""Of a selection: one task on each node is started, and counted by the lines of the node file."""


@dataclass(frozen=True)
class Wishes:
    """A checked request."""

    nodes: int
    gpus: int | None
    """Per node; None: all that a node has."""
    hours: float | None
    cpus: int | None
    words: Mapping[str, str]
    """Of SINGLE_WORDS, those that were given."""
    extra: Sequence[str]
    """Parts of the selection: `gpu_model=v100`."""
    raw: Sequence[str]


def parse_wishes(request: Request) -> Wishes:
    """Raises UsageError."""
    refuse_rental_flags(
        request, "the cluster decides that", ", or use --queue and --select-extra gpu_model=v100", ("--image",)
    )
    options = request.options
    extra = [part for word in options.get("select-extra") or () for part in str(word).split(":")]
    for part in extra:
        name, _, value = part.partition("=")
        if not name or not value or name in OUR_PARTS or any(sign in part for sign in "+ \t\n\0"):
            raise UsageError(
                f"--select-extra {part} cannot be", "write it as --select-extra NAME=VALUE, such as gpu_model=v100"
            )
    raw = raw_words(options, "qsub-arg", _is_ours, "-lsoftware=x")
    words = single_words(options, SINGLE_WORDS)
    return Wishes(request.nodes, request.gpus, request.max_hours, cores(options), words, extra, raw)


def _is_ours(word: str) -> bool:
    letter, value = (rest := word.lstrip(f"-{FLAGS}"))[:1], rest[1:]
    names = {part.partition("=")[0].strip() for part in value.split(",")}
    if letter == "l":
        return not names.isdisjoint(OUR_RESOURCES)
    return letter in OURS or (letter == "W" and "block" in names)  # qsub would wait for the job's end
