"""What a job does between the end of its nodes and what comes home from a bucket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.commands import train
from gpuops.core.context import Context
from gpuops.core.errors import Interrupted, StillBilling
from gpuops.core.signals import HandOver
from gpuops.ledger.rows import RunFacts
from gpuops.runs.finish import RunOutcome

ROW = cast("Any", SimpleNamespace(name="r-1", facts=RunFacts(bucket={"place": "s3://results/lab/r-1"})))
LIVE = cast("Any", SimpleNamespace(row=SimpleNamespace(name="lab")))
END = cast("Any", object())
"""What is known before that."""


def test_a_terminal_that_goes_while_it_is_fetched_leaves_word(world: Context) -> None:
    def rest() -> RunOutcome:
        raise HandOver("the terminal is gone", "")

    with pytest.raises(HandOver):
        train._fetch_deferred(world, LIVE, ROW, END, rest, ours=False)
    said = [say for _, say in world.ledger.take_notices()]
    assert said == ["what r-1 kept in its bucket is not all home: gpuops pull r-1 fetches it"]


def test_interrupted_while_the_nodes_end_nothing_is_fetched(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do end; what is in the bucket stays there."""
    fetched: list[str] = []

    def ended(world: Context, *_: object) -> int:
        world.signals.count += 1
        return 0

    monkeypatch.setattr("gpuops.commands.train.end_cluster", ended)
    with pytest.raises(Interrupted) as found:
        train._fetch_deferred(world, LIVE, ROW, END, lambda: cast("Any", fetched.append("rest")), ours=True)
    assert found.value.hint == "gpuops pull r-1 fetches what is in s3://results/lab/r-1"
    assert fetched == []


def test_a_run_that_was_stopped_by_a_signal_brings_everything_home(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.signals.count = 1
    monkeypatch.setattr("gpuops.commands.train.end_cluster", lambda *_: 0)
    whole = cast("Any", object())
    assert train._fetch_deferred(world, LIVE, ROW, END, lambda: whole, ours=True) is whole


def test_while_machines_may_still_bill_nothing_is_fetched(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their end is tried again at once, and not after hours."""
    fetched: list[str] = []
    monkeypatch.setattr("gpuops.commands.train.end_cluster", lambda *_: StillBilling.exit_code)
    rest = lambda: cast("Any", fetched.append("rest"))  # noqa: E731
    assert train._fetch_deferred(world, LIVE, ROW, END, rest, ours=True) is END
    assert fetched == []
