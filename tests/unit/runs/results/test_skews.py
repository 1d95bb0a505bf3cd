"""The clocks of nodes are looked at again where the order of deaths decides."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.errors import ConnectionLost
from gpuops.runs.outcome.node_report import parse_report
from gpuops.runs.results.collect import _measure_skews


class Clock:
    """An agent whose clock is so many seconds ahead of ours; None: it does not answer."""

    def __init__(self, ahead_s: float | None) -> None:
        self.ahead_s = ahead_s

    def call(self, verb: str) -> Any:
        assert verb == "ping"
        if self.ahead_s is None:
            raise ConnectionLost("cut by this test")
        return SimpleNamespace(time=time.time() + self.ahead_s)


@pytest.mark.parametrize(
    ("outcome", "ahead", "measured"),
    [
        ("failed", [0.0, 9000.0], {0: 0, 1: -9000}),
        ("failed", [None, 9000.0], {1: -9000}),
        ("failed", [9000.0], {}),
        ("done", [0.0, 9000.0], {}),
    ],
)
def test_after_a_failure_on_one_of_several_nodes(
    outcome: str, ahead: list[float | None], measured: dict[int, int]
) -> None:
    session = SimpleNamespace(clients=[Clock(one) for one in ahead])
    nodes = range(len(ahead))
    reports = {index: parse_report(index, {"outcome": outcome if index == 0 else "stopped"}) for index in nodes}
    skews = _measure_skews(cast("Any", session), nodes, reports)
    assert {index: round(skew, -1) for index, skew in skews.items()} == measured
