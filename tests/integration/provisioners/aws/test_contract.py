"""AWS's provisioner keeps the contract: the scenarios that need no node behind a machine, against the fake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.commands.prove.sandbox import Sandbox
from gpuops.commands.prove.scenarios import SCENARIOS, Scenario, run_scenario
from gpuops.core.context import Context
from gpuops.core.models import Request
from gpuops.core.signals import Signals
from gpuops.guard.services import WITHOUT_GUARD
from gpuops.testing import OWNER
from provisioners.aws import AwsProvisioner
from tests.fakes.aws import FakeAWS
from tests.fakes.aws.inside import inside

NEED_NODES = {"lost-answer", "ready", "watchdog", "bill", "boot-deadline"}


@pytest.fixture(scope="module", params=["spot", "on-demand"])
def wanted(request: pytest.FixtureRequest) -> Request:
    spot = request.param == "spot"
    return Request("aws", nodes=2 if spot else 1, gpus=4, gpu_type="a10g", spot=spot)


@pytest.fixture(scope="module")
def fake(wanted: Request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeAWS]:
    """Over HTTP; on demand within this process, but for what the scenarios' other processes ask."""
    with FakeAWS(tmp_path_factory.mktemp("aws")) as one, nullcontext() if wanted.spot else inside(one):
        one.ending_s = 0.1  # the proof waits for the end of all
        yield one


@pytest.fixture(scope="module")
def bench(fake: FakeAWS, wanted: Request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    home = tmp_path_factory.mktemp("home")
    env = {**os.environ, **fake.env}
    world = Context(
        home=home, owner=OWNER, folder=home, env=env, out=Output(), signals=Signals(), services=WITHOUT_GUARD, yes=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AwsProvisioner, "settle_s", 1.0)  # this AWS knows at once
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
def test_contract(bench: Sandbox, fake: FakeAWS, scenario: Scenario) -> None:
    result = run_scenario(bench, scenario)
    assert result.outcome == "proven", f"{scenario.name}: {scenario.says}; but {result.said}"
    if scenario.name == "nothing-left":
        assert fake.left() == []
