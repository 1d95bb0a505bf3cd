"""Provisioners of containers keep the contract: every scenario, against fakes whose containers are real machines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.runpod import FakeRunPod
from tests.fakes.vast import FakeVast
from tests.system.lab.available import why_no_lab
from tests.system.lab.hosts import Lab

INSIDE = Path(__file__).parent / "inside" / "container_contract.py"
HANG_S = 600
SCENARIOS = 17


@pytest.mark.timeout(HANG_S + 20)
@pytest.mark.skipif(why_no_lab() is not None, reason=str(why_no_lab()))
@pytest.mark.parametrize(
    ("name", "kind"), [("runpod", FakeRunPod), pytest.param("vast", FakeVast, marks=pytest.mark.proof)]
)
def test_containers(tmp_path: Path, name: str, kind: Any) -> None:
    report = tmp_path / "report.xml"
    with Lab(tmp_path / "lab") as lab, kind(tmp_path / name, lab=lab) as fake:
        done = subprocess.run(
            [*lab.enter, sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist",
             f"--basetemp={tmp_path / 'inside'}", f"--junitxml={report}", "-o", "junit_family=xunit1", str(INSIDE)],
            cwd=Path(__file__).parents[3], env={**os.environ, **fake.env, "CONTRACT_OF": name}, capture_output=True,
            text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{SCENARIOS} passed" in done.stdout, done.stdout
        assert report.read_text().count('<property name="proven"') == SCENARIOS, report.read_text()
        assert fake.running() == []
