"""What time it is at a provider, from the answers that come."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3

from provisioners.kit.http_api import ServerClock, retry_after_s
from provisioners.kit.http_client import HttpClient, Request
from tests.fakes.provider import FakeClock

DATE, MOMENT = "Tue, 24 Nov 2026 15:30:00 GMT", 1_795_534_200.0


@pytest.mark.parametrize("nonsense", [None, "", "yesterday", "Tue, 99 Nov 2026 15:30:00 GMT", "\0"])
def test_the_last_answer_and_the_time_since(nonsense: str | None) -> None:
    clock = FakeClock()
    server = ServerClock(clock)
    server.note(nonsense)
    assert server.now() is None
    server.note(DATE)
    clock.sleep(90.0)
    server.note(nonsense)
    assert server.now() == pytest.approx(MOMENT + 90.0, abs=0.1)
    server.note(DATE)
    assert server.now() == MOMENT


@pytest.mark.parametrize("date", ["Tue Nov 24 15:30:00 2026", "Tue, 24 Nov 2026 15:30:00 -0000"])
def test_a_date_without_a_zone_is_utc(date: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 9110 wants the first of them understood. An hour that is wrong moves the end of every machine by it."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        server = ServerClock(FakeClock())
        server.note(date)
        assert server.now() == MOMENT
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("said", "wait_s"), [("5", 5.0), ("9" * 400, None), ("-1", None), ("soon", None), ("", None)])
def test_a_wait_that_no_provider_can_mean_is_none(said: str, wait_s: float | None) -> None:
    assert retry_after_s({"Retry-After": said}) == wait_s


def test_every_answer_of_runpods_tells_it() -> None:
    client = HttpClient({}, FakeClock())
    response: Any = SimpleNamespace(
        connection=None,
        status=429,
        headers=urllib3.HTTPHeaderDict({"date": DATE}),
        read1=lambda _: b"",
        release_conn=lambda: None,
    )
    client._receive(response, Request("GET", "http://x/", "key", 1.0), 1e9)
    assert client.server_clock.now() == MOMENT
