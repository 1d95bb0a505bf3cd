"""How long a fetch asks a server that has never answered, and which failures say that nobody is there."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from gpuops.agent.fetch import download, web
from gpuops.agent.fetch.download import Download, Flow
from gpuops.agent.fetch.store import Wanted
from gpuops.agent.node import Refusal


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def seconds_until_given_up(monkeypatch: pytest.MonkeyPatch, failures: Iterator[Exception]) -> tuple[float, int]:
    """And how often it was asked."""
    clock, asked = Clock(), itertools.count()

    def fail(*_: Any) -> NoReturn:
        next(asked)
        raise next(failures)

    monkeypatch.setattr(download, "time", clock)
    monkeypatch.setattr(web, "ask", fail)
    addresses = SimpleNamespace(get=lambda _index: SimpleNamespace(address=None))
    store = SimpleNamespace(partial=lambda _path: None)
    one = Download(cast("Any", store), cast("Any", addresses), Flow(), 0, Wanted("x.bin", None, "", ""))
    with pytest.raises(Refusal) as refusal:
        one.fetch(None)
    assert refusal.value.kind == "unreachable"
    return clock.now - 100.0, next(asked)


def test_where_nobody_is_there_that_is_told_after_three_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, requests = seconds_until_given_up(monkeypatch, itertools.repeat(web.NotThere("refused")))
    assert requests == 3
    assert seconds < 3


def test_a_server_that_was_heard_once_is_given_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = itertools.chain([web.Cut("it answers 503")], itertools.repeat(web.NotThere("refused")))
    seconds, requests = seconds_until_given_up(monkeypatch, failures)
    assert requests > 3
    assert seconds >= download.FIRST_ANSWER_S


@pytest.mark.parametrize(
    ("failure", "is_nobody_there"),
    [
        (ConnectionRefusedError(111, "Connection refused"), True),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
        (TimeoutError("timed out"), False),
    ],
)
def test_which_failures_say_that_nobody_is_there(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, is_nobody_there: bool
) -> None:
    def fail(*_: Any) -> NoReturn:
        raise failure

    monkeypatch.setattr(web, "make_connection", fail)
    with pytest.raises(web.Cut) as cut:
        web.ask(web.Address("https://h.invalid/x", {}, has_checksum=False), {})
    assert isinstance(cut.value, web.NotThere) == is_nobody_there
