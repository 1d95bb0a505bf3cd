"""Provisioners of rented machines keep the contract: every scenario, against fakes whose machines are real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.aws import FakeAWS
from tests.fakes.lambdacloud import FakeLambda
from tests.fakes.runpod import FakeRunPod
from tests.fakes.vast import FakeVast
from tests.system.lab.available import why_no_lab, why_no_machines
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop

INSIDE = Path(__file__).parent / "inside" / "rented_contract.py"
HANG_S = 600
SCENARIOS = 17


@dataclass(frozen=True)
class Kind:
    fake: type[Any]
    left: Callable[[Any], list[Any]]
    """What of it still bills."""
    why_not: Callable[[], str | None]
    pace: dict[str, float]
    """Attributes of the fake, so that nobody waits for it; tests/integration/provisioners keeps to its limits."""
    not_guaranteed: int = 0
    """How many scenarios play what its machines are declared not to do."""


KINDS = {
    "aws": Kind(FakeAWS, FakeAWS.left, why_no_machines, {"ending_s": 0.1}),
    "lambda": Kind(
        FakeLambda, FakeLambda.running, why_no_machines, {"apart_s": 0.0, "launches_apart_s": 0.0}, not_guaranteed=2
    ),
    "runpod": Kind(FakeRunPod, FakeRunPod.running, why_no_lab, {}),
    "vast": Kind(FakeVast, FakeVast.running, why_no_lab, {}),
}


@pytest.mark.timeout(HANG_S + 20)
@pytest.mark.parametrize("name", ["aws", "lambda", "runpod", pytest.param("vast", marks=pytest.mark.proof)])
def test_machines(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    if reason := kind.why_not():
        pytest.skip(reason)
    report = tmp_path / "report.xml"
    with Lab(tmp_path / "lab") as lab, kind.fake(tmp_path / name, lab=lab) as fake:
        for attribute, value in kind.pace.items():
            setattr(fake, attribute, value)
        done = subprocess.run(
            [*lab.enter, sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist",
             f"--basetemp={tmp_path / 'inside'}", f"--junitxml={report}", "-o", "junit_family=xunit1", str(INSIDE)],
            cwd=Path(__file__).parents[3], env={**os.environ, **fake.env, "CONTRACT_OF": name}, capture_output=True,
            text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{SCENARIOS} passed" in done.stdout, done.stdout
        assert report.read_text().count('<property name="proven"') == SCENARIOS - kind.not_guaranteed
        assert kind.left(fake) == []


@pytest.mark.timeout(HANG_S + 20)
@pytest.mark.proof
@pytest.mark.parametrize("name", ["lambda", "vast"])
def test_prove_as_it_is_typed(tmp_path: Path, name: str) -> None:
    """With the services' own limits, and with money for one machine. tests/system/lab/test_runpod.py has RunPod's."""
    kind, record = KINDS[name], tmp_path / "record.json"
    if reason := kind.why_not():
        pytest.skip(reason)
    (tmp_path / "project").mkdir()
    with Lab(tmp_path / "lab") as lab, kind.fake(tmp_path / name, lab=lab) as fake:
        env = {**fake.env, "HOME": str(tmp_path)}
        shell = Laptop(tmp_path / "home", tmp_path / "project", env=env, prefix=lab.enter, lab=lab)
        try:
            process = shell.start("prove", name, "--spend", "2", "--yes", "--record", str(record))
            out, err = process.communicate(timeout=HANG_S)
        finally:
            shell.end()
        assert process.returncode == 0, err + out
        outcomes = [one["outcome"] for one in json.loads(record.read_text())["scenarios"]]
        assert outcomes.count("not guaranteed") == kind.not_guaranteed
        assert outcomes.count("proven") == SCENARIOS - kind.not_guaranteed, outcomes
        assert kind.left(fake) == []
