"""`run --on aws,runpod --retries 1`: a machine at AWS goes before it was ready, and a pod of RunPod's does the job.

What the run was to go on from is on the pod.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import until
from tests.fakes.aws import course
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop
from tests.system.lab.rented import Boot
from tests.system.lab.rented_aws import RentedAws
from tests.system.lab.rented_runpod import RentedRunPod

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


@dataclass
class Both:
    """A laptop with an account at each."""

    shell: Laptop
    runpod: RentedRunPod
    aws: RentedAws


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    if reason := RentedAws.why_not() or RentedRunPod.why_not():
        pytest.skip(reason)
    home, project = Path(tempfile.mkdtemp(prefix="gpuops-")), tmp_path / "project"
    project.mkdir()
    with Lab(tmp_path / "lab") as lab, RentedRunPod(tmp_path, lab) as runpod, RentedAws(tmp_path, lab) as aws:
        env = {**runpod.fake.env, **aws.fake.env, "HOME": str(home)}
        shell = Laptop(home, project, env=env, prefix=lab.enter, lab=lab)
        aws.lift_limits()
        try:
            yield Both(shell, runpod, aws)
        finally:
            shell.end()
            shutil.rmtree(home, ignore_errors=True)


@pytest.mark.timeout(1200)
@pytest.mark.proof
def test_it_goes_on_at_the_other_provider(both: Both) -> None:
    shell, runpod, aws = both.shell, both.runpod.fake, both.aws.fake
    shell.write("sum.py", SUM)
    first = shell.run("run", "--out", "saved.txt", "--", "python3", "sum.py")
    assert first.returncode == 0, first.stderr
    both.aws.next_boot(Boot.NEVER)
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
    whole = 1
    for step in range(1, 9):
        whole = whole * 31 % 1000003 + step
    assert (shell.folder / "runs" / "python3-2" / "out" / "saved.txt").read_text() == f"8 {whole}"
    assert shell.clusters() == []
