"""From the command to the first training step, beside what a user would type by hand: rsync, ssh and torchrun.

Both go to the same hosts and run the same program, which tells when torchrun, the script and the step came.
"""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.hosts import Desk, desk
from benchmarks.measure import PYTHON, ROOT, Options, Skip, Table, compared, gpuops, machine_use, version

Told = dict[str, float]
PARTS = {"torchrun": "torchrun starts", "script": "script starts", "step": "first step", "line": "seen here"}
COSTS = {"whole": "its end", "cpu": "CPU, s", "begun": "processes, threads"}
LEAST = (("cpu", 2), ("begun", 0))
"""Of these the least counts, with its digits: whatever else the machine does only adds to them."""
WAYS = ("by hand", "gpuops, cluster up", "gpuops, from nothing")
NOTES = (
    "Seconds from the command, medians; the least and the ratio are of what is seen here.",
    "By hand: `rsync && ssh … torchrun` for every host at once. From nothing: the hosts know nothing of gpuops yet.",
    "Its end: from nothing, the hosts are left as they were. CPU and what was begun, the least: of the whole machine.",
)


def tables(options: Options) -> Iterator[Table | Skip]:
    for count in (2,) if options.tiny else (2, 8):
        for torch in (False, True):
            if torch and version("torch") == "not installed":
                yield Skip("there is no torch here")
                continue
            try:
                with desk(count) as one:
                    make_project(one.project)
                    yield _table(one, torch, options)
            except Skip as why:
                yield why
                break


def make_project(folder: Path) -> None:
    shutil.copy(ROOT / "benchmarks/programs/step.py", folder)
    for index in range(30):
        (folder / f"module{index}.py").write_text(f"VALUE = {index}\n" * 100)


def _table(one: Desk, torch: bool, options: Options) -> Table:
    count = len(one.places)
    ways = dict(zip(WAYS, (partial(by_hand_once, one, torch), partial(on_cluster_once, one, torch),
                           partial(from_nothing_once, one, torch)), strict=True))  # fmt: skip
    one.type("up", "ssh", "--name", "bench", *one.hosts)
    for way in () if options.tiny or (torch and count > 2) else tuple(ways.values())[:2]:
        way()
    taken: dict[str, list[Told]] = {name: [] for name in ways}
    for _ in range(options.times(2 if count > 2 else 4)):
        for name, way in ways.items():
            if name != WAYS[2]:
                taken[name].append(way())
    one.type("down", "bench")
    for _ in range(options.times(1 if count > 2 else 2)):
        taken[WAYS[2]].append(ways[WAYS[2]]())
    what = "with torch" if torch else "overhead alone: a plain Python that prints"
    parts = list(PARTS) if torch else ["script", "line"]
    rows = []
    for name, rounds in taken.items():
        cells = [f"{statistics.median(told[part] for told in rounds):.2f}" for part in parts]
        least = f"{min(told['line'] for told in rounds):.2f}"
        whole = statistics.median(told["whole"] for told in rounds)
        costs = [f"{whole:.2f}", *(f"{min(told[cost] for told in rounds):.{digits}f}" for cost, digits in LEAST)]
        ratio = "" if name == WAYS[0] else compared([t["line"] for t in rounds], [t["line"] for t in taken[WAYS[0]]])
        rows.append([name, *cells, least, ratio, *costs])
    heads = ("way", *(PARTS[part] for part in parts), "least", "of by hand", *COSTS.values())
    return Table(f"Command to first step, {count} hosts, {what}", heads, rows, NOTES if torch else ())


def _told(one: Desk, argv: list[str]) -> Told:
    """Seconds from now until each part, as the program and this terminal tell it."""
    before, began = machine_use(), time.time()
    line, said = one.until_line(argv, "STEP {")
    whole, after = time.time() - began, machine_use()
    moments: Told = json.loads(said[said.index("{") :])
    costs = {"whole": whole, "cpu": after.cpu_s - before.cpu_s, "begun": float(after.begun - before.begun)}
    return {**{part: moment - began for part, moment in moments.items()}, "line": line, **costs}


def on_cluster_once(one: Desk, torch: bool) -> Told:
    return _told(one, _command(one, torch, "--cluster", "bench"))


def from_nothing_once(one: Desk, torch: bool) -> Told:
    return _told(one, _command(one, torch, "--on", "ssh", *one.hosts))


def _command(one: Desk, torch: bool, *where: str) -> list[str]:
    if torch:
        nodes = ("--nodes", len(one.places), "--gpus", 1)
        return gpuops("train", "multinode", *where, *nodes, "--python", PYTHON, "step.py")
    return gpuops("run", *where, "--nodes", len(one.places), "--all-nodes", "--", PYTHON, "step.py")


def by_hand_once(one: Desk, torch: bool) -> Told:
    script = one.project.parent / "by_hand.sh"
    script.write_text(by_hand(one, torch, 20_000 + time.time_ns() % 10_000))
    return _told(one, ["bash", str(script)])


def by_hand(one: Desk, torch: bool, port: int) -> str:
    """What a user would write who knows how: every host at once, its copy first and then its torchrun."""
    head, count = one.places[0].address, len(one.places)
    lines = ["set -u"]
    for index in range(count):
        program = [PYTHON, "step.py"]
        if torch:
            program = [
                "env", f"GLOO_SOCKET_IFNAME={one.interface}", PYTHON, "-m", "torch.distributed.run",
                f"--nnodes={count}", f"--node-rank={index}", "--nproc-per-node=1", f"--master-addr={head}",
                f"--master-port={port}", "step.py",
            ]  # fmt: skip
        copy = shlex.join(one.rsync(index, one.project, "by_hand"))
        start = shlex.join([*one.ssh(index), f"cd by_hand && exec {shlex.join(program)}"])
        lines.append(f"( {copy} && {start} ) &")
    # the exit code is that of the first that failed
    return "\n".join([*lines, "code=0", 'for job in $(jobs -p); do wait "$job" || code=$?; done', "exit $code", ""])
