"""What more ranks bring and what they cost, by `programs/step_cost.py`: the tables of docs/parallel.md."""

from __future__ import annotations

import multiprocessing
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.link import Link, link
from benchmarks.measure import ROOT, Failed, Options, Skip, Table, version
from benchmarks.ranks import HERE, Place, Ran, run_ranks, threads_for
from tests.system.train.made import cifar10, mnist

PROGRAMS = ROOT / "benchmarks/programs"
WORLDS = (1, 2, 4)
SMALL = (2, 8, 32, 128, 512)
SAMPLES = 1500
"""That digits learns from."""
LARGE = (4, 16, 64, 256, SAMPLES // 2)
HELD = ("parameters", "gradients", "buckets", "optimizer", "activations", "data")
PARTS = ("step", "communication", "data", "forward", "backward", "optimizer")

Runs = Mapping[str, Mapping[int, Ran]]
"""By program and number of ranks."""


@dataclass(frozen=True)
class Case:
    """A program as it is measured."""

    name: str
    arguments: Sequence[object] = ()
    links: Sequence[int] = ()
    """Mbit/s."""
    worlds: Sequence[int] = WORLDS

    def benchmark(self, places: Sequence[Place], *more: object) -> Ran:
        nodes = len({place.address for place in places})
        return run_ranks(
            [PROGRAMS / "step_cost.py", ROOT / f"train/{self.name}.py", *self.arguments, *more], places, nodes
        )


DIGITS = Case("digits", links=(10, 100, 1000))


def tables(options: Options) -> Iterator[Table | str]:
    if version("torch") == "not installed":
        raise Skip("there is no torch here")
    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder:
        cases = [Case("digits", worlds=(1, 2))] if options.tiny else _cases(Path(folder))
        runs = {case.name: {world: case.benchmark([HERE] * world) for world in case.worlds} for case in cases}
        yield _held(runs)
        yield _scaling(runs)
        yield _small_batches(SMALL[2:3] if options.tiny else SMALL)
        yield _threads((32,) if options.tiny else (32, 1024))
        yield _pipelines((1,) if options.tiny else (0, 1, 2))
        yield _large_batches(LARGE[-1:] if options.tiny else LARGE)
        try:
            with link() as slow:
                yield _slow_link(slow, [Case("digits", links=(1000,))] if options.tiny else cases)
        except Skip as why:
            yield str(why)


def _cases(folder: Path) -> list[Case]:
    # By another process: what this one ever had in memory would count as that of its children, too.
    making = multiprocessing.Process(target=_make, args=(folder,))
    making.start()
    making.join()
    if making.exitcode:
        raise Failed("the data could not be made")
    few = ("--data", folder / "cifar10", "--batch_size", 4)  # a processor takes seconds for the 128 of its recipe
    return [
        Case("toy"),
        DIGITS,
        Case("mnist", ("--data", folder / "mnist"), links=(10, 100, 1000)),
        Case("cifar10", few, links=(100,), worlds=(1, 2)),
    ]


def _make(folder: Path) -> None:
    """Data sets of the published shapes and sizes; what is on the images does not matter here."""
    for name in ("mnist", "cifar10"):
        (folder / name).mkdir()
    for name, content in mnist.contents(60_000, 10_000).items():
        (folder / "mnist" / name).write_bytes(content)
    cifar10.unpack(folder / "cifar10", cifar10.contents(10_000))


def _held(runs: Runs) -> Table:
    def most(ran: Ran) -> str:
        return f"{max(ran.peaks) / 1e6:.0f} MB"

    bare = {world: run_ranks([PROGRAMS / "reduce.py", 4], [HERE] * world) for world in (1, 2)}
    rows = [["torch, no model", "", *[""] * len(HELD), most(bare[1]), most(bare[2])]]
    for name, one in runs.items():
        rows.append([name, _batch(one[1]), *map(one[2].held, HELD), most(one[1]), most(one[2])])
    note = (
        "Counted in a step by `step_cost.py` with two ranks; more hold the same each, one alone has no buckets. `data` "
        "is the training set. The last two columns are the most memory that a process had, alone and as the larger one "
        "of two."
    )
    return Table("What each rank holds", ("program", "batch", *HELD, "process, alone", "of 2"), rows, [note])


def _batch(ran: Ran) -> str:
    found = re.search(r"each step (\d+) samples", ran.said)
    if found is None:
        raise Failed("no batch was told")
    return found[1]


def _scaling(runs: Runs) -> Table:
    rows = []
    for name, worlds in runs.items():
        alone = worlds[1].number("samples/s")
        for world, ran in worlds.items():
            rate = ran.number("samples/s")
            efficiency = ran.text("efficiency") if world > 1 else ""
            parts = (f"{ran.number(part):.2f}" for part in PARTS)
            rows.append(
                [name, str(world), str(threads_for(world)), f"{rate:,.0f}", f"{rate / alone:.2f} ×", efficiency, *parts]
            )
    note = (
        "`of 1 rank` is beside one rank that has all cores; `efficiency` is `step_cost.py`'s own, beside one rank with "
        "the threads it has here, while the others wait. From `step` on: ms."
    )
    heads = ("program", "ranks", "threads each", "samples/s", "of 1 rank", "efficiency", *PARTS)
    return Table("More ranks on one machine", heads, rows, [note])


def _small_batches(batches: Sequence[int]) -> Table:
    rows = []
    for arguments in (("--batch_size", str(batch)) for batch in batches):
        ran = DIGITS.benchmark([HERE] * 2, *arguments)
        step, sent = ran.number("step"), ran.number("communication")
        words = f"`{' '.join(arguments)}`"
        rows.append([words, f"{ran.number('samples/s'):,.0f}", f"{step:.2f}", f"{sent:.2f}", f"{sent / step:.0%}"])
    heads = ("digits, 2 ranks", "samples/s", "step, ms", "communication, ms", "of the step")
    return Table("Few samples per rank and step", heads, rows, ("Where nothing is said: batches of 32.",))


def _threads(batches: Sequence[int]) -> Table:
    rows = []
    for batch in batches:
        ran = run_ranks([PROGRAMS / "threads.py", 2, batch], [HERE])
        rows.append([str(batch), *(ran.text(way) for way in ("one after the other", "threads", "processes"))])
    heads = ("images each", "one after the other", "two threads of a process", "two processes")
    notes = ("digits' model without the backward, one computing thread each; the least of five rounds.",)
    return Table("Two forwards: a process or two", heads, rows, notes)


def _pipelines(workers: Sequence[int]) -> Table:
    ways = {"kept on the device": DIGITS.benchmark([HERE] * 2)}
    for number in workers:
        argv = [PROGRAMS / "pipeline.py", "--workers", number]
        ways[f"through a DataLoader, `--workers {number}`"] = run_ranks(argv, [HERE] * 2)
    names = ("data", "forward", "backward", "step")
    rows = [
        [way, f"{ran.number('samples/s'):,.0f}", *(f"{ran.number(name):.2f}" for name in names)]
        for way, ran in ways.items()
    ]
    heads = ("digits, 2 ranks", "samples/s", *(f"{name}, ms" for name in names))
    return Table("An input pipeline that starves", heads, rows)


def _large_batches(batches: Sequence[int]) -> Table:
    rows = []
    for batch in batches:
        ran = run_ranks([ROOT / "train/digits.py", "--batch_size", batch], [HERE] * 2)
        found = re.search(r"test accuracy (\S+) .*, (\d+) epochs in (\S+) s", ran.said)
        if found is None:
            raise Failed("no accuracy was told")
        steps = int(found[2]) * -(-SAMPLES // (2 * batch))
        rows.append([str(2 * batch), str(steps), found[3], found[1]])
    heads = ("digits, 2 ranks: samples per step", "steps", "s", "test accuracy")
    return Table("A batch too large to learn", heads, rows, ["As many epochs and the same learning rate for all."])


def _slow_link(slow: Link, cases: Sequence[Case]) -> Table:
    rows = []
    for case in cases:
        for megabits in case.links:
            slow.shape(megabits)
            ran = case.benchmark(slow.places)
            count = ran.bytes("gradients")
            alone = run_ranks([PROGRAMS / "reduce.py", round(count)], slow.places, 2)
            by_formula = 1000 * count * 8 / (megabits * 1e6)  # 2 (n - 1) / n is 1 for two
            told = (alone.number("all-reduce"), ran.number("communication"), ran.number("step"))
            rows.append(
                [case.name, str(megabits), ran.held("gradients"), f"{by_formula:,.1f}",
                 *(f"{each:,.1f}" for each in told), f"{ran.number('samples/s'):,.0f}", ran.text("efficiency")]
            )  # fmt: skip
    heads = ("2 hosts, a rank each", "Mbit/s", "gradients", "by the formula, ms", "all-reduce alone, ms",
             "communication, ms", "step, ms", "samples/s", "efficiency")  # fmt: skip
    notes = ("Hosts in network namespaces of one machine, the link shaped by `tc` (tbf) in both directions.",)
    return Table("A slow link", heads, rows, notes)
