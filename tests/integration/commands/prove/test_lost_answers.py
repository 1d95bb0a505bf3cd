"""What `gpuops.testing` sees of answers that do not come: ours keep the contract, and breaks of it are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuops.commands.prove.fault_injection import ContractBroken
from gpuops.commands.prove.lost_answers import losing_endpoints, lost_answers
from gpuops.core.errors import ProviderError, Rejected
from gpuops.core.models import Request
from gpuops.testing import LostAnswersContract, open_sandbox
from provisioners.aws import AwsProvisioner
from provisioners.lambdacloud import LambdaProvisioner
from provisioners.lambdacloud.service import SERVICE
from provisioners.runpod import RunpodProvisioner
from provisioners.vast import VastProvisioner
from tests.fakes.aws import FakeAWS
from tests.fakes.lambdacloud import FakeLambda
from tests.fakes.runpod import FakeRunPod, Life
from tests.fakes.vast import FakeVast
from tests.fakes.vast.records import AT_ONCE


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes know at once what they were asked for."""
    for provisioner in (AwsProvisioner, LambdaProvisioner, RunpodProvisioner, VastProvisioner):
        monkeypatch.setattr(provisioner, "settle_s", 1.0)
    monkeypatch.setattr(LambdaProvisioner, "service", replace(SERVICE, requests_apart_s=0.0))


@pytest.fixture(scope="module")
def runpod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRunPod]:
    with FakeRunPod(tmp_path_factory.mktemp("runpod")) as fake:
        fake.life = Life(assign_s=0, pull_s=0, map_s=0, ranked_s=0)
        yield fake


class TestRunPod(LostAnswersContract):
    provider = "runpod"

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls, runpod: FakeRunPod) -> Mapping[str, str]:
        return runpod.env

    @pytest.fixture(scope="class")
    @classmethod
    def wanted(cls) -> Request:
        return Request("runpod")


class TestVast(LostAnswersContract):
    provider = "vast"

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
        with FakeVast(tmp_path_factory.mktemp("vast")) as fake:
            fake.life, fake.haste = AT_ONCE, float("inf")
            yield fake.env


class TestAws(LostAnswersContract):
    provider = "aws"

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
        with FakeAWS(tmp_path_factory.mktemp("aws")) as fake:
            fake.ending_s = 0.1
            yield fake.env

    @pytest.fixture(scope="class")
    @classmethod
    def wanted(cls) -> Request:
        return Request("aws", gpus=4, gpu_type="a10g")


class TestLambda(LostAnswersContract):
    provider = "lambda"

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
        with FakeLambda(tmp_path_factory.mktemp("lambda")) as fake:
            fake.apart_s = 0.0
            yield fake.env

    @pytest.fixture(scope="class")
    @classmethod
    def wanted(cls) -> Request:
        return Request("lambda")


def give_up(instead: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A call that makes something else of every error of its provider's."""

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except ProviderError:
                return instead()

        return wrapped

    return around


def reject() -> None:
    raise Rejected("the pod was not made", "try another")


@pytest.mark.parametrize(
    ("member", "instead", "said"),
    [
        ("create", reject, "create raised Rejected"),
        ("list_owned", list, r"no answer came, and list_owned gave \[\]"),
        ("destroy", lambda: None, "no answer came, and destroy gave None"),
    ],
)
def test_a_break_is_named(
    runpod: FakeRunPod,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    member: str,
    instead: Callable[[], Any],
    said: str,
) -> None:
    monkeypatch.setattr(RunpodProvisioner, member, give_up(instead)(getattr(RunpodProvisioner, member)))
    with (
        losing_endpoints(runpod.env, RunpodProvisioner.surroundings) as endpoints,
        open_sandbox(endpoints.env, Request("runpod"), tmp_path) as sandbox,
        pytest.raises(ContractBroken, match=said),
    ):
        lost_answers(sandbox, endpoints)
    assert runpod.running() == []
