"""The contract's own scenarios, those that need no node behind a pod, against the fake."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.commands.prove.sandbox import Sandbox
from gpuops.commands.prove.scenarios import SCENARIOS, Scenario, run_scenario
from gpuops.core.context import Context
from gpuops.core.models import Request
from gpuops.core.signals import Signals
from gpuops.guard.services import WITHOUT_GUARD
from gpuops.testing import OWNER
from provisioners.runpod import RunpodProvisioner
from tests.fakes.runpod import FakeRunPod, Life

NEED_NODES = {"lost-answer", "ready", "watchdog", "bill", "boot-deadline"}
"""tests/system/contract runs these with machines behind the pods."""


@pytest.fixture(scope="module", params=[1, 2], ids=["pod", "cluster"])
def wanted(request: pytest.FixtureRequest) -> Request:
    return Request("runpod", nodes=request.param, gpus=8 if request.param > 1 else None)


@pytest.fixture(scope="module")
def fake(wanted: Request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRunPod]:  # noqa: ARG001
    with FakeRunPod(tmp_path_factory.mktemp("runpod")) as one:
        one.life = Life(assign_s=0, pull_s=0, map_s=0, ranked_s=0)
        yield one


@pytest.fixture(scope="module")
def bench(fake: FakeRunPod, wanted: Request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    home = tmp_path_factory.mktemp("home")
    env = {**os.environ, **fake.env}
    world = Context(
        home=home, owner=OWNER, folder=home, env=env, out=Output(), signals=Signals(), services=WITHOUT_GUARD, yes=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunpodProvisioner, "settle_s", 1.0)  # this service knows at once
        one = Sandbox(world, wanted)
        try:
            yield one
        finally:
            one.close()


@pytest.mark.parametrize(
    "scenario",
    [scenario for scenario in SCENARIOS if scenario.name not in NEED_NODES],
    ids=lambda scenario: scenario.name,
)
def test_contract(bench: Sandbox, fake: FakeRunPod, scenario: Scenario) -> None:
    result = run_scenario(bench, scenario)
    assert result.outcome == "proven", f"{scenario.name}: {scenario.says}; but {result.said}"
    if scenario.name == "nothing-left":
        assert fake.running() == []
