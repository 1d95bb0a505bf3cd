"""What time it is at a provider, from the answers that come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import urllib3

from provisioners.kit.http_api import ServerClock
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
