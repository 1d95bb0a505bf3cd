"""A machine of a launch that was never answered, which its provider lists minutes after its cluster is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.clusters import creation
from gpuops.clusters.leftovers import clear_leftovers
from gpuops.clusters.teardown import LATE_S
from gpuops.core.context import Context
from gpuops.core.errors import Unknown
from gpuops.core.models import Request
from gpuops.core.signals import Signals
from gpuops.guard.services import WITHOUT_GUARD
from gpuops.ledger.rows import ClusterState
from gpuops.offers.lease_limits import LeaseLimits
from tests.fakes.provider import OWNER, FakeClock
from tests.fakes.runpod import FakeRunPod
from tests.fakes.runpod import Fault as PodFault
from tests.fakes.runpod import Life as PodLife
from tests.fakes.vast import FakeVast, Fault
from tests.fakes.vast.records import AT_ONCE


@contextmanager
def vast(folder: Path, listed_s: float) -> Iterator[Any]:
    with FakeVast(folder, frozen=True) as fake:
        fake.life = replace(AT_ONCE, listed_s=listed_s)
        fake.haste = float("inf")
        fake.play(Fault("PUT /asks/*", cut=True, takes_effect=True))
        yield fake


@contextmanager
def runpod(folder: Path, listed_s: float) -> Iterator[Any]:
    with FakeRunPod(folder, frozen=True) as fake:
        fake.life = PodLife(assign_s=0, pull_s=0, map_s=0, listed_s=listed_s)
        fake.play(PodFault("POST /pods", cut=True, takes_effect=True))
        yield fake


class SharedClock(FakeClock):
    """The provider's time passes with ours."""

    def __init__(self, fake: Any) -> None:
        super().__init__()
        self._fake = fake

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._fake.advance(seconds + 0.001)


@pytest.mark.parametrize("provider", [vast, runpod], ids=lambda provider: str(provider.__name__))
@pytest.mark.parametrize("listed_s", [300.0, LATE_S * 3])
def test_it_is_looked_for_and_ended(tmp_path: Path, provider: Any, listed_s: float) -> None:
    """Also where it would end itself: until its boot lease is over it bills. Not for ever: `reap` looks later."""
    (tmp_path / "home").mkdir()
    with provider(tmp_path / "cloud", listed_s) as fake:
        world = Context(
            home=tmp_path / "home", owner=OWNER, folder=tmp_path, env=fake.env, out=Output(), signals=Signals(),
            services=WITHOUT_GUARD, yes=True, clock=SharedClock(fake),
        )  # fmt: skip
        request, wish = Request(provider.__name__), LeaseLimits(max_hours=1.0)
        with pytest.raises(Unknown):
            creation.bring_up(world, request, name="lab", ephemeral=False, wish=wish)
        (made,) = fake.running()
        (gone,) = world.ledger.list_guarded()
        assert gone.state is ClusterState.GONE
        clear_leftovers(world, gone)
        assert (made in fake.running()) is (listed_s > LATE_S)
        assert world.ledger.list_guarded() == []
