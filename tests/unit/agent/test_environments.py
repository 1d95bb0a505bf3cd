"""What a client hears while another makes the environment that it asked for."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.node import Cancelled
from gpuops.agent.python import environments
from tests.conftest import HANG_S


def test_a_wait_for_anothers_environment_beats_until_its_client_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "BEAT_INTERVAL_S", 0.0)
    items: list[dict[str, Any]] = []

    def emit(item: dict[str, Any]) -> None:
        items.append(item)
        if len(items) == 3:
            raise Cancelled

    plan = environments.EnvironmentPlan([], "torch", "", "abc")
    node = environments.Node(str(tmp_path / "lab" / "n0"))
    (tmp_path / "env").mkdir()
    with (tmp_path / "env" / "abc.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        guard = threading.Timer(HANG_S, fcntl.flock, (lock, fcntl.LOCK_UN))
        guard.daemon = True
        guard.start()
        with pytest.raises(Cancelled):
            environments.ensure_environment(node, plan, [], emit, lambda *_, **__: pytest.fail("nothing is made"))
        guard.cancel()
    assert items[0] == {"say": "waiting for the environment that is being made already"}
    assert [list(item) for item in items[1:]] == [["beat"], ["beat"]]
