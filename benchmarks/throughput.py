"""Whether training is as fast through gpuops as under a bare torchrun: the program itself counts."""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Iterator

from benchmarks.hosts import Desk, desk
from benchmarks.measure import PYTHON, ROOT, Failed, Options, Skip, Table, alternate, gpuops, version

GOAL = 0.99
SECONDS = 4.0
"""How long each round counts."""
RANKS = 2


def tables(options: Options) -> Iterator[Table]:
    if version("torch") == "not installed":
        raise Skip("there is no torch here")
    with desk(0) as one:
        shutil.copy(ROOT / "benchmarks/programs/work.py", one.project)
        length = "0.2" if options.tiny else str(SECONDS)
        ours = gpuops("train", "multigpu", "--gpus", RANKS, "--python", PYTHON, "work.py", "--", length)
        bare = [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "work.py", length]
        commands = {"gpuops train": ours, "torchrun": bare}
        works = {what: lambda argv=argv: _rate(one, argv) for what, argv in commands.items()}
        rates = alternate(works, options.times(5), warm=not options.tiny)
    ratio = statistics.median(a / b for a, b in zip(rates["gpuops train"], rates["torchrun"], strict=True))
    rows = [
        [
            f"`{what}`",
            f"{statistics.median(one):,.0f}",
            f"{max(one):,.0f}",
            f"{ratio:.3f}" if what != "torchrun" else "",
        ]
        for what, one in rates.items()
    ]
    yield Table(
        f"Training throughput, {RANKS} ranks on this machine",
        ("through", "median, samples/s", "most", f"of torchrun's (goal {GOAL})"),
        rows,
        ("Counted by the program, after a second that does not count. The ratio is the median of each round's.",),
    )


def _rate(one: Desk, argv: list[str]) -> float:
    """Samples per second, as the program tells it."""
    said = re.search(r"RATE (\S+)", one.do(argv))
    if said is None:
        raise Failed(f"{argv[2]} printed no rate")
    return float(said.group(1))
