"""What an array is (`--array 0-9%4`), which nodes its runs share, and what is told of it at the end. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.errors import UsageError
from gpuops.core.format import plural, table
from gpuops.core.run_models import RunRequest

MAX_RUNS = 1000
HINT = "write --array 0-9, --array 1,3,7, --array 0-15:4, or --array 0-9%4 for at most 4 at once"
PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
SPACE = re.compile(r"\s*([-,:%])\s*")
"""May be around a sign, and not between numbers: `1 3` is not 13."""
TOKEN = "{index}"
"""What stands for the index in a program's arguments."""
NARROW_DROPS = ("SECONDS", "RESULTS")
"""Columns that a narrow terminal leaves out, in this order."""


@dataclass(frozen=True)
class Array:
    """The indices of an array's runs, in order, and how many may run at once (None: as many as there is room for)."""

    text: str
    """As it was typed."""
    indices: Sequence[int]
    at_most: int | None = None

    def describe(self, each: int) -> str:
        """`each`: how many nodes a run uses."""
        limit = f", at most {self.at_most} at once" if self.at_most else ""
        return f"{plural(len(self.indices), 'run')} (--array {self.text}), each on {plural(each, 'node')}{limit}"


def parse_array(text: str) -> Array:
    """`--array`, in Slurm's grammar. Raises UsageError."""
    if not text.strip():
        raise UsageError("--array is empty", HINT)
    listed, percent, limit = SPACE.sub(r"\1", text.strip()).partition("%")
    if percent and not (limit.isascii() and limit.isdecimal() and int(limit[:9]) > 0):
        raise UsageError(f"--array {text} does not say how many may run at once", HINT)
    indices: list[int] = []
    for part in listed.split(","):
        indices += _parse_part(text, part)
        if len(indices) > MAX_RUNS:
            raise UsageError(f"--array {text} is more than {MAX_RUNS} runs", "start them in several arrays")
    for index, count in Counter(indices).items():
        if count > 1:
            raise UsageError(f"--array {text} has {index} twice", "name each index once")
    return Array(text, indices, int(limit[:9]) if percent else None)


def _parse_part(text: str, part: str) -> Sequence[int]:
    """The indices of `3`, `0-9` or `0-9:3`; those beyond the most there may be are left out. Raises UsageError."""
    match = PART.fullmatch(part)
    if match is None:
        raise UsageError(f"--array {text} names no indices" + (f" with '{part}'" if part else ""), HINT)
    first, last, step = (None if group is None else int(group) for group in match.groups())
    assert first is not None
    if last is None:
        return [first]
    if last < first or step == 0:
        raise UsageError(f"--array {text}: {part} is empty", HINT)
    return range(first, last + 1, step or 1)[: MAX_RUNS + 1]


def format_indices(indices: Sequence[int]) -> str:
    """Indices as `--array` takes them: `0-3,7`."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def request_of_index(request: RunRequest, index: int, nodes: Sequence[int]) -> RunRequest:
    """The run of one index on these nodes of the cluster."""
    argv = [word.replace(TOKEN, str(index)) for word in request.argv]
    return dataclasses.replace(request, argv=argv, nodes=len(nodes), nodes_at=[*nodes], array_index=index)


def gpus_of_run(request: RunRequest) -> int | None:
    """How many of a node's GPUs one run of an array uses; None: the whole node."""
    return 1 if request.mode == "single" else request.gpus


def choose_slots(gpus: Sequence[int], request: RunRequest, array: Array) -> Sequence[Sequence[int]]:
    """The nodes of each place in which runs follow one another. `gpus`: of each machine, the first node of which has
    its number; where a run leaves some of a machine's GPUs, virtual nodes share them, machine by machine in turn."""
    most = min(len(array.indices), array.at_most or len(array.indices))
    each, wanted = request.nodes, gpus_of_run(request)
    if each > 1:
        places = [tuple(range(first, first + each)) for first in range(0, len(gpus) - each + 1, each)]
        return places[:most] or [tuple(range(each))]
    shares = max(1, min(gpus) // wanted) if wanted else 1
    return [(node,) for node in range(len(gpus) * shares)][:most]


@dataclass(frozen=True)
class IndexOutcome:
    """What became of one index."""

    index: int
    exit_code: int
    say: str
    run: str = ""
    """Its name; empty where it never started."""
    seconds: float | None = None
    results: str = ""
    """The folder of its results."""
    document: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of its run, as `train --json` prints it."""
    ends_place: bool = False
    """No further run begins on its nodes: one is lost, or has what is not home yet."""


def describe_outcomes(outcomes: Sequence[IndexOutcome], width: int | None) -> list[str]:
    """The table of all indices."""
    heading = ["INDEX", "RUN", "SECONDS", "RESULTS", "WHAT CAME OF IT"]
    cells = [
        [
            str(one.index),
            one.run or "-",
            "-" if one.seconds is None else f"{one.seconds:.0f}",
            one.results or "-",
            one.say,
        ]
        for one in outcomes
    ]
    return table([heading, *cells], width, gives=4, spare=NARROW_DROPS)


def documents(outcomes: Sequence[IndexOutcome]) -> Iterator[dict[str, Any]]:
    """Each index for `--json`: its run's own document, or why there is none."""
    for one in outcomes:
        there = one.document or {"run": None, "error": {"say": one.say}}
        yield {**there, "index": one.index, "exit_code": one.exit_code}


def summarise(outcomes: Sequence[IndexOutcome]) -> str:
    """The last sentence."""
    failed = [one.index for one in outcomes if one.exit_code]
    if not failed:
        return f"{'all ' if len(outcomes) > 1 else ''}{plural(len(outcomes), 'run')} of the array ended well"
    again = f"--array {format_indices(failed)}"
    return f"{len(failed)} of {plural(len(outcomes), 'run')} of the array did not end well\nhint: again: {again}"
