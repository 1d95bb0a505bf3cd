"""Providers of rented machines keep the contract: the scenarios that need no node behind a machine, against the fakes.

tests/system/contract plays the others, with machines of a lab.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from provisioners.lambdacloud import LambdaProvisioner
from provisioners.lambdacloud.service import SERVICE
from provisioners.runpod import RunpodProvisioner
from provisioners.vast import VastProvisioner
from tests.fakes.aws import FakeAWS
from tests.fakes.aws.inside import inside
from tests.fakes.lambdacloud import FakeLambda
from tests.fakes.runpod import FakeRunPod, Life
from tests.fakes.vast import FakeVast
from tests.fakes.vast.records import AT_ONCE

NEED_NODES = {"lost-answer", "ready", "watchdog", "bill", "boot-deadline"}
SETTLE_S = 1.0
"""The fakes know at once what they were asked for."""


PROVISIONERS = {
    "aws": AwsProvisioner,
    "runpod": RunpodProvisioner,
    "lambda": LambdaProvisioner,
    "vast": VastProvisioner,
}


@dataclass(frozen=True)
class Kind:
    """What is rented where, and what the fake provider still has in the end."""

    name: str
    request: Request
    fake: Callable[[Path], AbstractContextManager[Any]]
    left: Callable[[Any], list[Any]]

    @property
    def provisioner(self) -> type[Any]:
        return PROVISIONERS[self.request.provider]


@contextmanager
def aws_by_http(folder: Path) -> Iterator[FakeAWS]:
    with FakeAWS(folder) as fake:
        fake.ending_s = 0.1  # the proof waits for the end of all
        yield fake


@contextmanager
def aws_in_process(folder: Path) -> Iterator[FakeAWS]:
    """Within this process, but for what the scenarios' other processes ask."""
    with aws_by_http(folder) as fake, inside(fake):
        yield fake


@contextmanager
def runpod(folder: Path) -> Iterator[FakeRunPod]:
    with FakeRunPod(folder) as fake:
        fake.life = Life(assign_s=0, pull_s=0, map_s=0, ranked_s=0)
        yield fake


@contextmanager
def lambda_cloud(folder: Path) -> Iterator[FakeLambda]:
    """As in fast motion: a second is 20 ms, for the service and for whoever keeps to its limits."""
    with FakeLambda(folder) as fake, pytest.MonkeyPatch.context() as patch:
        fake.apart_s, fake.launches_apart_s = 0.02, 0.24
        patch.setattr(LambdaProvisioner, "service", replace(SERVICE, requests_apart_s=0.03))
        patch.setattr(LambdaProvisioner, "launches_apart_s", 0.3)
        yield fake


@contextmanager
def vast(folder: Path) -> Iterator[FakeVast]:
    with FakeVast(folder) as fake:
        fake.life, fake.haste = AT_ONCE, float("inf")
        yield fake


SPOT = Request("aws", nodes=2, gpus=4, gpu_type="a10g", spot=True)
ON_DEMAND = Request("aws", nodes=1, gpus=4, gpu_type="a10g", spot=False)
POD, CLUSTER = Request("runpod"), Request("runpod", nodes=2, gpus=8)
KINDS = (
    Kind("aws-spot", SPOT, aws_by_http, FakeAWS.left),
    Kind("aws-on-demand", ON_DEMAND, aws_in_process, FakeAWS.left),
    Kind("runpod-pod", POD, runpod, FakeRunPod.running),
    Kind("runpod-cluster", CLUSTER, runpod, FakeRunPod.running),
    Kind("lambda", Request("lambda", nodes=2), lambda_cloud, FakeLambda.running),
    Kind("vast", Request("vast"), vast, FakeVast.running),
)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture(scope="module")
def fake(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with kind.fake(tmp_path_factory.mktemp(kind.request.provider)) as one:
        yield one


@pytest.fixture(scope="module")
def bench(kind: Kind, fake: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    home = tmp_path_factory.mktemp("home")
    env = {**os.environ, **fake.env}
    world = Context(
        home=home, owner=OWNER, folder=home, env=env, out=Output(), signals=Signals(), services=WITHOUT_GUARD, yes=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind.provisioner, "settle_s", SETTLE_S)
        one = Sandbox(world, kind.request)
        try:
            yield one
        finally:
            one.close()


@pytest.mark.parametrize(
    "scenario",
    [scenario for scenario in SCENARIOS if scenario.name not in NEED_NODES],
    ids=lambda scenario: scenario.name,
)
def test_contract(bench: Sandbox, kind: Kind, fake: Any, scenario: Scenario) -> None:
    if scenario.name == "killed":  # another process, which would keep to the real limits
        shutil.rmtree(bench.ctx.home / "pace", ignore_errors=True)
    result = run_scenario(bench, scenario)
    assert result.outcome == "proven", f"{scenario.name}: {scenario.says}; but {result.said}"
    if scenario.name == "nothing-left":
        assert kind.left(fake) == []
