"""What programs on a node ask of their agent."""

from __future__ import annotations

import socket

import pytest

from gpuops.agent.rpc import connect


def test_an_agent_that_fails_has_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog would take the run for ended, and kill its processes without a SIGTERM."""
    ours, agent = socket.socketpair()
    monkeypatch.setattr(connect, "dial", lambda _limit_s: ours)
    with agent:
        agent.sendall(b'{"id": 1, "error": {"kind": "bug", "say": "the agent met a bug", "hint": "", "data": {}}}\n')
        with pytest.raises(ValueError, match="the agent met a bug"):
            connect.ask("leave", {}, 10.0)
