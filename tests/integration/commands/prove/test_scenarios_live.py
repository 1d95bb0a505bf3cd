"""What only shows on nodes that live: tents that lag, do not end themselves, bill otherwise than they say."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.commands.prove.sandbox import Sandbox
from gpuops.commands.prove.scenarios import SCENARIOS, Result, run_scenario
from gpuops.core import provider as contract
from gpuops.core.context import Context
from gpuops.core.models import Offer, Request, Resource
from gpuops.core.signals import Signals
from gpuops.guard.services import WITHOUT_GUARD
from provisioners.checked_provisioner import CheckedProvisioner
from tests.fakes.provider import OWNER
from tests.fakes.tent import PLUGIN

Run = Callable[..., dict[str, Result]]


@pytest.fixture
def tents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Some scenarios on a tent with something changed; what it leaves in spite of all is ended."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    from gpuops_tent import TentProvisioner

    whole = TentProvisioner(contract.Context(OWNER, tmp_path, os.environ))

    def on(broken: type, *names: str) -> dict[str, Result]:
        tent = type("Broken", (broken, TentProvisioner), {})(contract.Context(OWNER, tmp_path, os.environ))
        world = Context(
            home=tmp_path,
            owner=OWNER,
            folder=tmp_path,
            env=os.environ,
            out=Output(),
            signals=Signals(),
            services=WITHOUT_GUARD,
            yes=True,
            provisioners={"tent": CheckedProvisioner(tent)},
        )
        bench = Sandbox(world, Request("tent"), patience_s=1.0)
        try:
            return {scenario.name: run_scenario(bench, scenario) for scenario in SCENARIOS if scenario.name in names}
        finally:
            for stand in bench.shared.values():
                stand.close()

    yield on
    whole.destroy(whole.list_owned(OWNER, []))


LAG_S = 15.0
"""Longer than a busy machine takes to come to its first look."""


class Lags:
    """It says that it knows at once what was made, and does not."""

    made = float("inf")

    def create(self, *arguments: Any) -> Sequence[Resource]:
        made: Sequence[Resource] = super().create(*arguments)  # type: ignore[misc]
        self.made = time.monotonic()
        return made

    def list_owned(self, *arguments: Any) -> Sequence[Resource]:
        return super().list_owned(*arguments) if time.monotonic() > self.made + LAG_S else []  # type: ignore[misc]


def test_what_is_listed_too_late_is_not_adopted_and_may_be_left(tents: Run) -> None:
    results = tents(Lags, "lost-answer", "ready", "nothing-left")
    assert results["lost-answer"].outcome == "failed"
    assert "is not found by its mark" in results["lost-answer"].said
    assert results["ready"].outcome == "skipped"


class KnowsWhatItMade:
    """By its own memory, which dies with the process."""

    def list_owned(self, *arguments: Any) -> Sequence[Resource]:
        listed = super().list_owned(*arguments)  # type: ignore[misc]
        return [one for one in listed if one.id in getattr(self, "told", ())]

    def create(self, offer: Offer, intent: Any, journal: Any) -> Sequence[Resource]:
        made: Sequence[Resource] = super().create(offer, intent, journal)  # type: ignore[misc]
        self.told = [one.id for one in made]
        return made


def test_what_only_a_process_remembers_is_lost_with_it(tents: Run) -> None:
    result = tents(KnowsWhatItMade, "killed")["killed"]
    assert result.outcome == "failed"
    assert "is not found by its mark" in result.said


class CannotEndItself:
    gone_s = 2.0

    def self_destruct(self, resource: Resource) -> Sequence[str]:  # noqa: ARG002
        return ["true"]


class CannotAndSaysSo:
    capabilities = {  # noqa: RUF012
        "multinode": True, "spot": "no", "host_keys": "no", "rented": True, "shares_disk": True,
        "self_destruct": "a tent has no knife",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "outcome", "said"),
    [
        (CannotEndItself, "failed", "the provider still has a node"),
        (CannotAndSaysSo, "not guaranteed", "a tent has no knife"),
    ],
)
def test_a_node_that_outlives_its_lease(tents: Run, broken: type, outcome: str, said: str) -> None:
    result = tents(broken, "watchdog")["watchdog"]
    assert (result.outcome, said in result.said) == (outcome, True), result


class CostsMore:
    def describe(self, resource: Resource) -> Resource:
        seen: Resource = super().describe(resource)  # type: ignore[misc]
        return dataclasses.replace(seen, per_hour=1.2 * seen.per_hour)  # what `up` bears without another question


class HasAnotherCustomer:
    asked = 0

    def balance(self) -> float:
        self.asked += 1
        return 20.0 - (self.asked > 1)


@pytest.mark.parametrize(
    ("broken", "outcome", "said"),
    [
        (CostsMore, "failed", "the offer said $0.3600/h, its machines say $0.4320/h"),
        (HasAnotherCustomer, "not guaranteed", "the account fell by $1.0000: something else may be billed there"),
    ],
)
def test_a_bill_that_is_not_what_was_told(tents: Run, broken: type, outcome: str, said: str) -> None:
    result = tents(broken, "bill")["bill"]
    assert (result.outcome, said in result.said) == (outcome, True), result
