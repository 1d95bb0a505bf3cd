"""What share of a GPU the image programs reach, and what raises it, by `programs/step_cost.py`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import ROOT, Failed, Options, Skip, Table, version
from benchmarks.ranks import HERE, Ran, run_ranks
from tests.system.train.made import cifar10, mnist

PROGRAM = ROOT / "benchmarks/programs/step_cost.py"
WAYS: tuple[Sequence[str], ...] = (
    (),
    ("--amp", "bf16"),
    ("--amp", "bf16", "--batch_size", "1024"),
)
NOTE = (
    "Images of the true shapes, made up. The share is that of a large matrix product on the same GPU in the same "
    "precision: without `--amp` both are computed in TF32, where the GPU has it."
)


def tables(options: Options) -> Iterator[Table]:
    if version("torch") == "not installed":
        raise Skip("there is no torch here")
    import torch

    if not torch.cuda.is_available():
        raise Skip("there is no GPU here")
    worlds = sorted({1, torch.cuda.device_count()})
    ways = WAYS[1:2] if options.tiny else WAYS
    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder:
        rows = [
            [f"`{name} {' '.join(way)}`", str(world), *told(_benchmark(name, data, way, world))]
            for name, data in make(Path(folder)).items()
            for way in ways
            for world in worlds
        ]
    heads = ("program", "GPUs", "samples/s", "step, ms", "GFLOP/s per GPU", "of the product's")
    yield Table(f"{torch.cuda.get_device_name()}: images", heads, rows, [NOTE])


def make(folder: Path) -> dict[str, Path]:
    """The data of each program, as many as are published."""
    places = {name: folder / name for name in ("mnist", "cifar10")}
    for place in places.values():
        place.mkdir()
    for name, content in mnist.contents(60_000, 10_000).items():
        (places["mnist"] / name).write_bytes(content)
    cifar10.unpack(places["cifar10"], cifar10.contents(10_000))
    return places


def _benchmark(name: str, data: Path, way: Sequence[str], world: int) -> Ran:
    return run_ranks([PROGRAM, ROOT / f"train/{name}.py", "--data", data, *way], [HERE] * world)


def told(ran: Ran) -> list[str]:
    """Samples per second, milliseconds, arithmetic and its share."""
    found = re.search(r"arithmetic +([\d.,]+) GFLOP/s per rank, ([\d.]+%) of", ran.said)
    if found is None:
        raise Failed("no arithmetic was told")
    return [ran.text("samples/s").strip(), ran.text("step").removesuffix(" ms"), found[1], found[2]]
