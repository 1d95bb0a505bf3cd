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


RETRY = b"""WARNING: Retrying (Retry(total=%d, connect=None, read=None, redirect=None, status=None)) after connection \
broken by 'NewConnectionError(': Failed to establish a new connection: [Errno -3]')': /whl/cpu/torch/
"""


@pytest.mark.parametrize(
    "last",
    [
        "ERROR: No matching distribution found for torch<2.14,>=2.4",
        "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/",  # where the host constrains torch, too
    ],
)
def test_a_host_without_internet_is_told_once(last: str) -> None:
    items: list[dict[str, Any]] = []
    lines = environments.LineReporter(items.append)
    for left in (1, 0):
        lines.feed(RETRY % left)
    lines.feed(f"{last}\n".encode())
    assert [item["say"] for item in items] == [
        "no package index answers; trying on (this host has no internet? --python PATH)",
        last,
    ]
    assert lines.error_line() == f"no package index answers: {last}"


@pytest.mark.parametrize(("given", "retries"), [({}, "2"), ({"PIP_RETRIES": "9"}, "9")])
def test_pip_gives_up_soon_unless_the_machine_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], retries: str
) -> None:
    monkeypatch.delenv("PIP_RETRIES", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen: list[dict[str, str]] = []

    def spawn(_argv: Any, *, env: dict[str, str], **_: Any) -> Any:
        seen.append(env)
        raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(environments.Refusal, match="cannot be started"):
        environments._run_step(["pip"], lambda _: None, spawn)
    assert seen[0]["PIP_RETRIES"] == retries


@pytest.mark.parametrize(
    ("index", "named"),
    [("", "the package index,"), ("https://me@mirror/simple", "https://mirror/simple,")],
)
def test_the_hint_names_the_index_that_was_asked_without_its_login(index: str, named: str) -> None:
    def spawn(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(environments.Refusal) as refused:
        environments._run_step(["pip"], lambda _: None, spawn, index)
    assert f"the node reaches {named} name another index (export GPUOPS_TORCH_INDEX=URL)" in refused.value.hint
