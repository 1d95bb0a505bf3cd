"""The contract as tests, for authors of provisioners. Needs pytest.

    from gpuops.testing import ProvisionerContract

    class TestTent(ProvisionerContract):
        provider = "tent"

Each scenario of `commands.prove` is a test, against whatever the provisioner reaches: a fake of the provider, or,
where credentials are in the environment, the real thing, which costs money (`gpuops prove` keeps that to a limit).
They run in order and share machines; what one of them lacks because another failed, it skips. `LostAnswersContract`
is for a fake that is reached by HTTP, for which `fake_server` has the server: requests are kept, hooked, met by faults.
`FaultyEndpoint` stands before any server, and loses answers, refuses (429, 500) or is slow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuops.commands.prove import fake_server
from gpuops.commands.prove.fault_injection import ContractBroken, NotRunnable
from gpuops.commands.prove.lost_answers import FaultyEndpoint, losing_endpoints, lost_answers
from gpuops.commands.prove.sandbox import Sandbox
from gpuops.commands.prove.scenarios import SCENARIOS, Outcome, Scenario, run_scenario
from gpuops.core import provider as contract
from gpuops.core.context import Context
from gpuops.core.models import Request
from gpuops.core.reporting import LogReporter
from gpuops.core.signals import Signals
from gpuops.guard.services import WITHOUT_GUARD
from provisioners import registry

OWNER = "0a1b2c3d"
__all__ = ["OWNER", "FaultyEndpoint", "LostAnswersContract", "ProvisionerContract", "fake_server", "open_sandbox"]


class _Provider:
    """What both classes of tests are told."""

    provider: str

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls) -> Mapping[str, str]:
        """What the provisioner finds in `contract.Context.env`; override it for a fake, whose port is known once it
        runs."""
        return os.environ

    @pytest.fixture(scope="class")
    @classmethod
    def wanted(cls, env: Mapping[str, str]) -> Request:
        """What is asked for; override it for options of the provider's own. Two nodes show more than one."""
        able = registry.load_provisioner(cls.provider, contract.Context(OWNER, Path(), env)).capabilities
        return Request(cls.provider, nodes=2 if able.get("multinode") is True else 1)


class ProvisionerContract(_Provider):
    """Subclass it with a name that pytest collects, and say which provider."""

    @pytest.fixture(scope="class")
    @classmethod
    def bench(
        cls, env: Mapping[str, str], wanted: Request, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Sandbox]:
        with open_sandbox(env, wanted, tmp_path_factory.mktemp("home")) as bench:
            yield bench

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
    def test_contract(self, bench: Sandbox, scenario: Scenario, record_property: Any) -> None:
        result = run_scenario(bench, scenario)
        record_property(result.outcome.value, result.said)
        if result.outcome is Outcome.FAILED or result.refused:
            pytest.fail(f"{scenario.name}: {scenario.says}; but {result.said}", pytrace=False)
        if result.outcome is Outcome.SKIPPED:
            pytest.skip(result.said)


class LostAnswersContract(_Provider):
    """The same for answers that do not come, where `env` leads to a fake: by a variable of the provisioner's
    `surroundings`, to an address with `http://`."""

    def test_lost_answers(self, env: Mapping[str, str], wanted: Request, tmp_path: Path, record_property: Any) -> None:
        declared = registry.account_variables(self.provider).surroundings
        try:
            with losing_endpoints(env, declared) as endpoints, open_sandbox(endpoints.env, wanted, tmp_path) as bench:
                record_property("proven", lost_answers(bench, endpoints))
        except ContractBroken as error:
            pytest.fail(f"lost answers: {error}", pytrace=False)
        except NotRunnable as error:
            pytest.skip(str(error))


@contextmanager
def open_sandbox(env: Mapping[str, str], wanted: Request, home: Path) -> Iterator[Sandbox]:
    """A home of its own, in which no guard starts: what is left is to be seen, not tidied up."""
    ctx = Context(
        home=home,
        owner=OWNER,
        folder=home,
        env=env,
        out=LogReporter(sys.stderr),
        signals=Signals(),
        services=WITHOUT_GUARD,
        yes=True,
    )
    bench = Sandbox(ctx, wanted)
    try:
        yield bench
    finally:
        bench.close()
