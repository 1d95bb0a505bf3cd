"""The training programs beside the public examples that do the same job: how fast, and what was learnt.

    git clone --depth 1 https://github.com/pytorch/examples
    python -m benchmarks examples --examples examples --install

The examples run as they are published; on a machine without a GPU `programs/published.py` answers what they ask of one.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import PYTHON, ROOT, Failed, Options, Skip, Table, alternate, compared, run, version
from benchmarks.ranks import HERE, run_ranks, threads_for
from tests.system.train.made import mnist

ADDRESS = "https://github.com/pytorch/examples"
SERIES, MNIST = "distributed/ddp-tutorial-series/multigpu_torchrun.py", "mnist/main.py"
PUBLISHED = ROOT / "benchmarks/programs/published.py"
DATA = "GPUOPS_DATA"
SAMPLES, EPOCHS = 2048, 50
IMAGES, TEST_IMAGES = 60_000, 10_000
FEW = 64 * 21
"""Images that are enough for the example to say twice how far it is."""

Lines = Sequence[tuple[float, str]]
"""What rank 0 said, each line after the second at which it did."""


@dataclass
class Side:
    """A program in a world of some size, and what its runs come to."""

    name: str
    published: bool
    world: int
    argv: Sequence[object]
    rate: Callable[[Lines], float]
    """Samples per second."""
    result: Callable[[Lines, Path], float]
    results: list[float] = field(default_factory=list)

    def measure(self, base: Path) -> float:
        """Samples per second of a run that finds no snapshot of an earlier one."""
        work = base / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        lines = stamped(run_ranks([PUBLISHED, work, *self.argv], [HERE] * self.world).said)
        self.results.append(self.result(lines, work))
        return self.rate(lines)


def tables(options: Options) -> Iterator[Table | str]:
    series, example = _published(options.examples)
    if version("torch") == "not installed":
        raise Skip("there is no torch here")
    import torch

    gpus = torch.cuda.device_count()
    worlds = sorted({1, gpus}) if gpus else [1, 2]
    ways = _ways(series.parents[2], gpus)
    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder:
        base = Path(folder)
        toy = _toy(series, worlds, options)
        yield _beside("A linear layer", "squared error", base, toy, options.times(5), [TOLD_TOY, ways])
        if why := _without_torchvision(base, options):
            yield f"left out: examples: {why}\n"
            return
        data, origin = _data(base, options)
        sides = _mnist(example, worlds, data, epochs=3 if gpus else 1)
        yield _beside("MNIST", "test accuracy", base, sides, options.times(3), [origin, TOLD_MNIST, ways])


# ---- what is run ----------------------------------------------------------------------------------------------------

TOLD_TOY = (
    f"As in the series: {EPOCHS} epochs, a snapshot every 10. Samples per second are those between the second and the "
    "last line about an epoch. The error is that of the last snapshot on fresh samples; to say 0.5 always comes to "
    "0.0833. The example learns nothing, since the cross entropy of one class is 0 whatever the weights are; it is no "
    "less arithmetic for that."
)
TOLD_MNIST = (
    "Samples per second are those of the last epoch, ours with its snapshot; the accuracy is that after it. The "
    "example is for one process."
)


def _toy(series: Path, worlds: Sequence[int], options: Options) -> list[Side]:
    words = (5, 2) if options.tiny else (EPOCHS, 10)
    return [
        Side(path.name, path == series, world, [path, *words], epochs_rate, _squared_error)
        for world in worlds
        for path in (series, ROOT / "train/toy.py")
    ]


def _mnist(example: Path, worlds: Sequence[int], data: Path, epochs: int) -> list[Side]:
    ours = [ROOT / "train/mnist.py", epochs, "--data", data]
    theirs = Side(MNIST, True, 1, [example, "--epochs", epochs], example_rate, _accuracy)
    return [theirs, *(Side("mnist.py", False, world, ours, last_epoch_rate, _accuracy) for world in worlds)]


def _published(folder: Path | None) -> tuple[Path, Path]:
    """The two examples. Raises Skip."""
    if folder is None or not all((folder / name).exists() for name in (SERIES, MNIST)):
        raise Skip(f"they are not kept here: `git clone --depth 1 {ADDRESS}`, and name the folder with --examples")
    return (folder / SERIES).resolve(), (folder / MNIST).resolve()


def _ways(examples: Path, gpus: int) -> str:
    """How the examples are run."""
    try:
        commit = run(["git", "-C", examples, "log", "-1", "--format=%h of %cs"]).strip()
    except Failed:
        commit = "an unknown state"
    told = f"The example is unchanged, from {ADDRESS} at {commit}; torch and OMP_NUM_THREADS are the same for both."
    if gpus:
        return told
    return (
        f"{told} There is no GPU, so for the example choosing one does nothing, what is sent to one stays where it is, "
        "DistributedDataParallel gets no device, nccl is gloo, and torchvision has no compiled library, which "
        "it does not call here. That is in the example's favour, if at all: none of it takes more than a microsecond."
    )


def _without_torchvision(base: Path, options: Options) -> str | None:
    """Why the MNIST example cannot run."""
    if version("torchvision") != "not installed":
        return None
    if not options.install:
        return "MNIST's needs torchvision, which --install brings for as long as this runs"
    minor = int(version("torch").split(".")[1])  # torchvision 0.15 belongs to torch 2.0, 0.16 to 2.1, …
    missing = [name for name in ("pillow",) if version(name) == "not installed"]
    words = ["--quiet", "--no-deps", "--target", base / "libs", f"torchvision==0.{15 + minor}.*", *missing]
    run([PYTHON, "-m", "pip", "install", *words])
    return None


def _data(base: Path, options: Options) -> tuple[Path, str]:
    """A folder with MNIST's four files, where the example looks for them, too; and what they are."""
    where = base / "data/MNIST/raw"
    where.mkdir(parents=True)
    count = (FEW, 100) if options.tiny else (IMAGES, TEST_IMAGES)
    own = os.environ.get(DATA)
    for name, content in mnist.contents(*count).items():
        (where / name).write_bytes(_unpacked(Path(own), name) if own else content)
    if own:
        return where, f"The images are those of ${DATA}."
    return where, f"{count[0]:,} images of MNIST's shape and format, made up and easy to tell apart."


def _unpacked(folder: Path, name: str) -> bytes:
    packed = folder / f"{name}.gz"
    return gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()


# ---- what comes of it -----------------------------------------------------------------------------------------------


def stamped(said: str) -> Lines:
    """Lines as `published.py` prints them."""
    return [(float(second), line) for second, _, line in (one.partition(" ") for one in said.splitlines())]


def epochs_rate(lines: Lines) -> float:
    """Of the lines `[GPU0] Epoch …`: the example's when an epoch begins, ours when it is over; as many lie between."""
    seconds = [second for second, line in lines if line.startswith("[GPU0] Epoch")]
    return SAMPLES * (len(seconds) - 2) / (seconds[-1] - seconds[1])


def example_rate(lines: Lines) -> float:
    """Of `Train Epoch: 1 [640/60000 (1%)] …`, in the last epoch."""
    told = [(second, re.match(r"Train Epoch: (\d+) \[(\d+)/", line)) for second, line in lines]
    steps = [(second, int(found[1]), int(found[2])) for second, found in told if found]
    last = [(second, images) for second, epoch, images in steps if epoch == steps[-1][1]]
    return (last[-1][1] - last[0][1]) / (last[-1][0] - last[0][0])


def last_epoch_rate(lines: Lines) -> float:
    """Of `60000 images to learn …` and `epoch 1: …`, from the line before the last epoch's to that."""
    [images] = [int(line.split()[0]) for _, line in lines if " images to learn" in line]
    last = max(index for index, (_, line) in enumerate(lines) if line.startswith("epoch "))
    return images / (lines[last][0] - lines[last - 1][0])


def _accuracy(lines: Lines, _work: Path) -> float:
    """Of `Accuracy: 9812/10000 (98%)` or `test accuracy 0.9812`."""
    for _, line in reversed(lines):
        if found := re.search(r"Accuracy: (\d+)/(\d+)|test accuracy (\S+)", line):
            return float(found[3]) if found[3] else int(found[1]) / int(found[2])
    raise Failed("no accuracy was told")


def _squared_error(_lines: Lines, work: Path) -> float:
    """Of the weights in either program's snapshot, the mean over samples like those that they learnt from."""
    import torch

    theirs, ours = work / "snapshot.pt", work / "snapshots/toy"
    path = theirs if theirs.exists() else ours / (ours / "last").read_text().strip()
    kept = torch.load(path, map_location="cpu", weights_only=True)
    weights = kept["MODEL_STATE"] if path == theirs else kept["model"]
    chance = torch.Generator().manual_seed(0)
    inputs, targets = torch.rand(100_000, 20, generator=chance), torch.rand(100_000, 1, generator=chance)
    return float((inputs @ weights["weight"].T + weights["bias"] - targets).square().mean())


def _beside(title: str, learnt: str, base: Path, sides: Sequence[Side], rounds: int, notes: Sequence[str]) -> Table:
    works = {f"{side.name} {side.world}": lambda side=side: side.measure(base) for side in sides}
    rates = list(alternate(works, rounds, warm=False).values())
    examples = {side.world: rate for side, rate in zip(sides, rates, strict=True) if side.published}
    rows = []
    for side, rate in zip(sides, rates, strict=True):
        measured = f"{statistics.median(rate):,.0f}", f"{max(rate):,.0f}"
        example = None if side.published else examples.get(side.world)
        rows.append(
            [f"`{side.name}`", str(side.world), str(threads_for(side.world)), *measured,
             compared(rate, example) if example else "", f"{statistics.median(side.results):.4f}"]
        )  # fmt: skip
    heads = ("program", "processes", "threads each", "samples/s, median", "most", "of the example's", learnt)
    return Table(f"{title}, beside the public example", heads, rows, notes)
