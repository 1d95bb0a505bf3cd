"""Edit a line, run again: how soon the first line of rank 0 is there, on a cluster that is up."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.hosts import Desk, desk
from benchmarks.measure import HANG_S, PYTHON, Options, Skip, Table, alternate, gpuops, seconds, version

GOALS_S = {1: 1.0, 2: 1.0, 8: 2.0}
"""What gpuops may add to the script's own start, for each number of hosts that is measured."""
SCRIPT = """\
import torch, torch.distributed as dist
print("LINE {number}", flush=True)
dist.init_process_group("gloo")
dist.destroy_process_group()
"""


def tables(options: Options) -> Iterator[Table | Skip]:
    if version("torch") == "not installed":
        raise Skip("there is no torch here")
    rows: list[list[str]] = []
    left_out: list[Skip] = []
    for count in (1,) if options.tiny else GOALS_S:
        try:
            with desk(count) as one:
                rows += _measured(one, options)
        except Skip as why:
            left_out.append(why)
    yield Table(
        "Edit to first line of rank 0, cluster up",
        ("what", "hosts", "median, s", "least, s", "added, s", "goal, s"),
        rows,
        ("The script's own start: torchrun, typed where it runs, as often at once as there are hosts.",),
    )
    yield from left_out


@contextmanager
def _beside(argv: Sequence[str], folder: Path) -> Iterator[None]:
    process = subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
        process.wait(HANG_S)
    finally:
        process.kill()
        process.wait()


def _measured(one: Desk, options: Options) -> list[list[str]]:
    count = len(one.places)
    numbers = itertools.count()

    def edited() -> str:
        (one.project / "edit.py").write_text(SCRIPT.format(number=(number := next(numbers))))
        return f"LINE {number}"

    def ours() -> float:
        nodes = ("--nodes", count) if count > 1 else ()
        mode = "multinode" if count > 1 else "single"
        mark = edited()
        return one.until_line(gpuops("train", mode, *nodes, "--gpus", 1, "--python", PYTHON, "edit.py"), mark)[0]

    def own() -> float:
        mark = edited()
        torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "edit.py"]
        with ExitStack() as stack:  # as many at once as there are hosts, since all of these share this machine
            for _ in range(count - 1):
                stack.enter_context(_beside(torchrun, one.project))
            return one.until_line(torchrun, mark)[0]

    one.type("up", "ssh", "--name", "bench", *one.hosts)
    taken = alternate({"own": own, "ours": ours}, options.times({1: 5, 2: 3}.get(count, 2)), warm=not options.tiny)
    one.type("down", "bench")
    (own_median, own_least), (median, least) = seconds(taken["own"]), seconds(taken["ours"])
    return [
        ["the script's own start", str(count), own_median, own_least, "", ""],
        [
            "gpuops train",
            str(count),
            median,
            least,
            f"{float(median) - float(own_median):.2f}",
            f"{GOALS_S[count]:.0f}",
        ],
    ]
