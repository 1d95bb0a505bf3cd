"""What the classic mistakes of data-parallel programs cost, each beside the right way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.measure import PYTHON, ROOT, Failed, Options, Skip, Table, version

PROGRAMS = ROOT / "benchmarks/programs/mistakes"
RANKS = 4
SEEDS, EPOCHS = 5, 15
ROUNDS, MEGABYTES = 10, 10
HANG_S = 1500.0
"""Beyond this a program hangs: on a busy machine they take a quarter of an hour."""
PATIENCE_S = 10.0
"""For one that was told to end."""


def tables(options: Options) -> Iterator[Table]:
    if version("torch") == "not installed":
        raise Skip("there is no torch here")
    seeds, epochs, rounds, megabytes = (2, 1, 1, 1) if options.tiny else (SEEDS, EPOCHS, ROUNDS, MEGABYTES)
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    learnt = told([*torchrun, PROGRAMS / "learn.py", ROOT / "train", options.rounds or seeds, epochs])
    yield learning(learnt["results"], epochs)
    yield figures(learnt["judged"], learnt["test"])
    rounds = options.rounds or rounds
    files = told([PYTHON, PROGRAMS / "files.py", RANKS, rounds, megabytes, learnt["apart"]])
    yield fetching(files["fetched"], megabytes, learnt["apart"], rounds)
    yield saving(files["saved"], rounds)


def learning(results: Mapping[str, Sequence[Mapping[str, float]]], epochs: int) -> Table:
    right = results["right"]
    rows = []
    for name, runs in results.items():
        accuracies = [100 * run["accuracy"] for run in runs]
        against = [own - 100 * other["accuracy"] for own, other in zip(accuracies, right, strict=True)]
        row = [
            name,
            spread(accuracies, 1),
            "" if runs is right else difference(against),
            spread([run["train loss"] for run in runs], 3),
            f"{mean(run['samples'] for run in runs):,.0f}",
            f"{mean(run['steps'] for run in runs):.0f}",
            f"{mean(run['seconds'] / epochs for run in runs):.2f}",
            f"{mean(100 * run['seen'] for run in runs):.0f} %",
        ]
        rows.append(row)
    return Table(
        f"Learning: {epochs} epochs of digits on {RANKS} ranks, {len(right)} seeds",
        ("way", "test accuracy, %", "gained, points", "train loss", "samples/epoch", "steps/epoch", "s/epoch", "seen"),
        rows,
        (
            f"±: standard deviation over the seeds. If the {len(right)} seeds disagree on the sign, it is noise.",
            "1,000 images to learn from, 797 to test with. Samples: of all ranks together. Seen: by rank 0, ever.",
        ),
    )


def figures(judged: Sequence[Mapping[str, float]], images: int) -> Table:
    rows = []
    for name in judged[0]:
        if name != "exact":
            off = [100 * abs(one[name] - one["exact"]) for one in judged]
            rows.append([name, f"{mean(off):.2f}", f"{max(off):.2f}"])
    return Table(
        f"Figures: the accuracy that is told, beside that of all {images} test images",
        ("told", "off by, points", "at most"),
        rows,
        (f"{len(judged)} tests: after every epoch of the right way. Each rank has a {RANKS}th of the images.",),
    )


def fetching(fetched: Sequence[Mapping[str, Any]], megabytes: float, apart: float, rounds: int) -> Table:
    rows = [
        [
            name,
            f"{one['requests']:.1f}",
            f"{one['megabytes']:.0f}",
            f"{statistics.median(one['seconds']):.2f}",
            f"{one['not whole']} of {one['read']}",
        ]
        for name, one in zip(("one rank, the others wait", "every rank"), fetched, strict=True)
    ]
    return Table(
        f"Download: {megabytes} MB for {RANKS} ranks of one machine",
        ("who downloads", "requests", "MB", "s until all have read it", "found it half-written or torn"),
        rows,
        (
            f"A server of this machine, 20 MB/s for all together, {rounds} rounds. Who finds the file just reads.",
            f"The ranks come within {apart:.2f} s, as those of the learning above did.",
        ),
    )


def saving(saved: Sequence[Mapping[str, Any]], rounds: int) -> Table:
    rows = [
        [
            name,
            f"{statistics.median(one['seconds']):.2f}",
            f"{max(one['seconds']):.2f}",
            f"{one['failed']} of {one['looks']}",
            f"{one['unsound']} of {one['rounds']}",
        ]
        for name, one in zip(("rank 0, beside its place, then renamed", "every rank, to one path"), saved, strict=True)
    ]
    return Table(
        f"Saving: a ResNet-18 (45 MB), {RANKS} ranks",
        ("who saves", "s", "at most", "could not be loaded meanwhile", "wrong checksum afterwards"),
        rows,
        (
            f"{rounds} saves, each over the last one. Meanwhile another process loads the file again and again.",
            "Wrong checksum: parts of several ranks' files, whose BatchNorm statistics differ; `torch.load` takes it.",
        ),
    )


def mean(numbers: Any) -> float:
    return statistics.fmean(numbers)


def spread(numbers: Sequence[float], digits: int) -> str:
    """`97.1 ± 0.4`."""
    return f"{mean(numbers):.{digits}f} ± {statistics.stdev(numbers) if len(numbers) > 1 else 0:.{digits}f}"


def difference(against: Sequence[float]) -> str:
    """`-11.2`, or that it is within the noise."""
    agreed = all(one > 0 for one in against) or all(one < 0 for one in against)
    return f"{mean(against):+.1f}" + ("" if agreed else ", within the noise")


def told(argv: Sequence[object]) -> dict[str, Any]:
    """What a program tells as JSON; nothing that it started is left. Raises Failed."""
    words = [str(word) for word in argv]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdin=none, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(words[-5:])} has not ended after {HANG_S:.0f} s") from None
        finally:
            end(process)
    if process.returncode:
        raise Failed(f"{' '.join(words[-5:])} failed: {(err.strip().splitlines() or ['it said nothing'])[-1]}")
    answer: dict[str, Any] = json.loads(out.partition("TOLD ")[2])
    return answer


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()  # torchrun ends its ranks, which have sessions of their own
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
