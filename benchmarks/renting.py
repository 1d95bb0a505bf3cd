"""What renting adds before anything is asked for: `up runpod` until its first request, beside commands that ask nobody.

The service is a fake on this machine that answers at once: what is counted is ours.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import PYTHON, Options, Table, alternate, environment, gpuops, milliseconds, run


def tables(options: Options) -> Iterator[Table]:
    from tests.fakes.runpod import FakeRunPod

    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder, FakeRunPod(Path(folder, "fake")) as fake:
        env = {**environment(Path(folder, "home")), **fake.env}

        def first_request() -> float:
            fake.requests.clear()
            began = time.time()
            run(gpuops("up", "runpod", "--dry-run"), cwd=Path(folder), env=env)
            return fake.requests[0].at - began

        works = {
            "`gpuops status`, nothing there": lambda: run(gpuops("status"), cwd=Path(folder), env=env),
            "`gpuops down`, nothing there": lambda: run(gpuops("down"), cwd=Path(folder), env=env),
            "`gpuops up local --dry-run`": lambda: run(gpuops("up", "local", "--dry-run"), cwd=Path(folder), env=env),
            "`gpuops up runpod --dry-run`, until its first request": first_request,
            "the same, to its end": lambda: run(gpuops("up", "runpod", "--dry-run"), cwd=Path(folder), env=env),
        }
        if peer := _vendor():
            works["RunPod's own package, `import runpod`"] = lambda: run([peer, "-c", "import runpod"], env=env)
        taken = alternate(works, options.times(9))
    rows = [[name, *milliseconds(one)] for name, one in taken.items()]
    yield Table("Renting", ("what", "median, ms", "least, ms"), rows, _notes(peer))


def _vendor() -> str:
    """A Python that has the vendor's package: the one of the tests, or one that $BENCH_RUNPOD_PYTHON names."""
    python = os.environ.get("BENCH_RUNPOD_PYTHON") or PYTHON
    site = Path(python).parent.parent / "lib"
    return python if shutil.which(python) and list(site.glob("python*/site-packages/runpod")) else ""


def _notes(peer: str) -> tuple[str, ...]:
    ours = "`--dry-run` asks RunPod what there is, and creates nothing; the fake answers within a millisecond or two."
    return (ours,) if peer else (ours, "RunPod's own package is not installed here: it was left out.")
