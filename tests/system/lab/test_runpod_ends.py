"""A pod that ends while a run goes on there: what is said, and that nothing goes on costing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HANG_S, until
from tests.fakes.runpod import FakeRunPod
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop

LOOP = "import time\nprint('began', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def fake(lab: Lab, tmp_path: Path) -> Iterator[FakeRunPod]:
    with FakeRunPod(tmp_path / "runpod", lab=lab) as one:
        yield one


@pytest.mark.parametrize("how", ["GONE", "EXITED"])
def test_a_pod_that_ends_in_the_middle_of_a_run(fake: FakeRunPod, laptop: Laptop, tmp_path: Path, how: str) -> None:
    """Its host failed, or the balance was used up; what has merely stopped costs on, and is ended."""
    laptop.env |= {**fake.env, "HOME": str(tmp_path)}
    laptop.write("loop.py", LOOP)
    words = ("run", "--on", "runpod", "--gpu-type", "4090", "--yes", "--", "python3", "loop.py")
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        run = laptop.start(*words, stdout=out, stderr=err)
    until(lambda: run.poll() is not None or "began" in (tmp_path / "out").read_text(), "the run goes on")
    (pod,) = fake.running()
    fake.end(pod, how)
    run.wait(timeout=HANG_S)
    said = (tmp_path / "err").read_text().splitlines()
    assert run.returncode == 4, said
    assert any(line.startswith("1 node of runpod-1 ended, nothing left (") for line in said), said
    assert said[-3:] == [
        "not home node0 ended before all results were home",
        "node0 ended without a word",
        "hint: run it again: it left no snapshot to continue from",
    ]
    assert fake.running() == []
    assert laptop.clusters() == []
