"""`run --on A,B --retries 1`: A's machine goes, before it was ready or in mid-run, and B's does the rest of the job.

What the run was to go on from is on B's machine.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import until
from tests.fakes.aws import course
from tests.fakes.runpod import FakeRunPod
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop
from tests.system.lab.rented import Boot
from tests.system.lab.rented_aws import RentedAws
from tests.system.lab.rented_runpod import RentedRunPod
from tests.system.lab.rented_vast import RentedVast

HANG_S = 500.0
SUM = """
import pathlib
saved = pathlib.Path("saved.txt")
done, total = map(int, saved.read_text().split()) if saved.exists() else (0, 1)
print("began at", done, flush=True)
for step in range(done + 1, (done or 0) + 5):
    total = total * 31 % 1000003 + step
saved.write_text(f"{step} {total}")
"""
WAITING_SUM = """
import os, pathlib, time
saved = pathlib.Path("saved.txt")
done, total = map(int, saved.read_text().split()) if saved.exists() else (0, 1)
print("began at", done, flush=True)
for step in range(done + 1, 9):
    total = total * 31 % 1000003 + step
    pathlib.Path("draft").write_text(f"{step} {total}")
    os.replace("draft", saved)
    if step == 4 and done == 0:
        time.sleep(600)
pathlib.Path("result.txt").write_text(str(total))
print("result", total, flush=True)
"""
"""Saves after each step, and waits in the fourth to lose its machine."""


def whole_sum() -> int:
    """What a run comes to that was never disturbed."""
    return reduce(lambda total, step: total * 31 % 1000003 + step, range(1, 9), 1)


LabAt = Callable[[type[Any], type[Any]], AbstractContextManager[tuple[Laptop, Any, Any]]]


@pytest.fixture
def lab(tmp_path: Path) -> LabAt:
    """A laptop with an account at each of two providers."""

    @contextmanager
    def at(one: type[Any], other: type[Any]) -> Iterator[tuple[Laptop, Any, Any]]:
        if reason := one.why_not() or other.why_not():
            pytest.skip(reason)
        home, project = Path(tempfile.mkdtemp(prefix="gpuops-")), tmp_path / "project"
        project.mkdir()
        with Lab(tmp_path / "lab") as lab, one(tmp_path, lab) as first, other(tmp_path, lab) as second:
            env = {**first.fake.env, **second.fake.env, "HOME": str(home)}
            shell = Laptop(home, project, env=env, prefix=lab.enter, lab=lab)
            first.lift_limits()
            second.lift_limits()
            try:
                yield shell, first, second
            finally:
                shell.end()
                shutil.rmtree(home, ignore_errors=True)

    return at


@pytest.mark.timeout(1200)
@pytest.mark.proof
def test_it_goes_on_at_the_other_provider(lab: LabAt) -> None:
    with lab(RentedRunPod, RentedAws) as (shell, runpod, aws):
        lose_instance(shell, runpod.fake, aws)


def lose_instance(shell: Laptop, runpod: FakeRunPod, rented: RentedAws) -> None:
    aws = rented.fake
    shell.write("sum.py", SUM)
    first = shell.run("run", "--out", "saved.txt", "--", "python3", "sum.py")
    assert first.returncode == 0, first.stderr
    rented.next_boot(Boot.NEVER)
    command = shell.start(
        *("run", "--on", "aws,runpod", "--gpus", "1", "--gpu-type", "l4", "--max-price", "9", "--yes", "--json"),
        *("--retries", "1", "--resume", "python3-1", "--out", "saved.txt", "--", "python3", "sum.py"),
    )
    until(lambda: aws.instances() or command.poll() is not None, "the machine", HANG_S)
    assert command.poll() is None, command.communicate()
    (machine,) = aws.instances()
    assert runpod.running() == []
    with aws.world.lock:
        course.end(aws.world, machine, ("Server.InternalError", "Server.InternalError: Internal error on launch"))
    out, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 0, err
    document = json.loads(out)
    (loss,) = document["retries"]
    assert (loss["provider"], loss["started"], document["provider"]) == ("aws", False, "runpod")
    assert "aws lost machines of this run: asked last\n" in err
    assert (shell.folder / "runs" / "python3-2" / "out" / "saved.txt").read_text() == f"8 {whole_sum()}"
    assert shell.clusters() == []


def outbid(vast: RentedVast) -> None:
    (machine,) = vast.fake.running()
    vast.fake.outbid(machine)


def lose(runpod: RentedRunPod) -> None:
    """Its machine fails, and RunPod knows of no such pod any more."""
    (pod,) = runpod.fake.running()
    runpod.fake.end(pod, "GONE")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("cloud", "flags", "end"),
    [
        (RentedRunPod, ("--gpu-type", "l4"), lose),
        pytest.param(RentedVast, ("--spot",), outbid, marks=pytest.mark.proof),
    ],
    ids=["lost", "outbid"],
)
def test_a_run_goes_on_at_aws_and_ends_as_one_that_was_never_disturbed(
    lab: LabAt, cloud: type[Any], flags: tuple[str, ...], end: Callable[[Any], None]
) -> None:
    """Its snapshot goes from the one to the other by way of the laptop."""
    with lab(cloud, RentedAws) as (shell, first, aws):
        shell.write("sum.py", WAITING_SUM)
        command = shell.start(
            *("run", "--on", f"{cloud.name},aws", "--gpus", "1", *flags, "--max-price", "9", "--yes", "--json"),
            *("--retries", "1", "--out", "*.txt", "--", "python3", "sum.py"),
        )
        saved = shell.folder / "runs" / "python3-1" / "out" / "saved.txt"
        until(
            lambda: (saved.exists() and saved.read_text().startswith("4 ")) or command.poll() is not None,
            "the snapshot at home",
            HANG_S,
        )
        assert command.poll() is None, command.communicate()
        end(first)
        out, err = command.communicate(timeout=HANG_S)
        assert command.returncode == 0, err
        document = json.loads(out)
        (loss,) = document["retries"]
        assert (loss["provider"], loss["run"], document["provider"]) == (cloud.name, "python3-1", "aws")
        resumed = shell.folder / "runs" / "python3-2"
        assert (resumed / "logs" / "node0" / "launcher.out").read_text() == f"began at 4\nresult {whole_sum()}\n"
        assert (resumed / "out" / "result.txt").read_text() == str(whole_sum())
        assert first.what_bills() == aws.what_bills() == []
        assert shell.clusters() == []
