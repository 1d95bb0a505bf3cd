"""What tests/unit/clusters/test_creation_wait.py leaves to real processes or sockets."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.clusters.teardown import tear_down
from gpuops.core.context import Context
from gpuops.core.polling import Clock
from gpuops.nodes.session import ClusterSession
from gpuops.offers.search import SEARCH_PAUSES_S
from tests.fakes.provider import Cloud, surroundings
from tests.unit.clusters.test_creation_wait import HOURS, NOTHING, said, up


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    cloud, world = surroundings(tmp_path, monkeypatch)
    world.out = Output(err=io.StringIO())
    return cloud, world


def end(cloud: Cloud, world: Context, live: ClusterSession) -> None:
    live.close()
    world.clock = Clock()  # real nodes take real time to end
    tear_down(world, live.row.id, "the test's end")
    assert cloud.machines() == []


@pytest.mark.parametrize(
    "script", [{"offers": [NOTHING] * 5}, {"create": [NOTHING] * 5}, {"offers": [NOTHING] * 2, "create": [NOTHING] * 3}]
)
def test_it_is_asked_again_until_there_is_something(there: tuple[Cloud, Context], script: dict[str, Any]) -> None:
    """Money and lease count from the attempt that succeeds."""
    cloud, world = there
    cloud.play(real=True, **script)
    began = world.clock.now()
    live = up(world, max_cost=10.0)
    pauses = [*SEARCH_PAUSES_S, SEARCH_PAUSES_S[-1]]
    row = world.ledger.cluster(live.row.id)
    assert world.clock.slept[:5] == pauses  # type: ignore[attr-defined]
    assert row.created == pytest.approx(began + sum(pauses), abs=1)
    told = (2 + 8) * HOURS  # the longest wait, and what $10 buy
    assert began + told <= row.lease.hard_end <= row.created + told + 1
    assert row.lease.money_end == pytest.approx(row.created + 8 * HOURS, abs=1)
    assert [one.name for one in world.ledger.clusters(live=False)] == ["lab"]
    assert said(world).count("asking again for 2 h 00 min\n") == 1
    assert said(world).count("offer 0, $1.25/h; until ") == 1
    end(cloud, world, live)
