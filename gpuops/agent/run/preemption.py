"""What a machine's provider says on the machine itself: that it takes it back, or may soon.

`node.json` says where to ask: `"notices": {"kind": "ec2", "url": …}`, with `every_s` where 5 s are not what is wanted.
Asked while a run is on, in a thread of its own.
A service that does not answer says nothing, and fails nothing.
"""

from __future__ import annotations

import calendar
import http.client
import json
import threading
import time
import urllib.parse
from typing import Any, Callable, List, Mapping, NamedTuple

from gpuops.agent.node import Node, log

EVERY_S = 5.0
"""How often is asked: AWS advises so, of the two minutes that it gives."""
ANSWER_S = 2.0
LONGEST = 65536
"""Bytes of an answer."""
LEAD_S = 120.0
"""How long before its end a machine hears of it, in seconds; for where the notice does not say."""
RESERVE_S = 40.0
"""How much of that is kept for bringing results away."""
TOKEN_S = 21600
RENEW_S = TOKEN_S / 2


class Notice(NamedTuple):
    kind: str
    """`reclaim`: the machine goes; `rebalance`: it may go soon."""
    by: str
    at: float | None
    """When it goes, or since when it may (UTC seconds)."""


Source = Callable[[], List[Notice]]
"""All that is said at this moment. Raises OSError, http.client.HTTPException or ValueError."""


class Ec2:
    """The instance metadata service, version 2: every question needs a token, which is had by asking."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._token = ""
        self._renew = 0.0

    def __call__(self) -> list[Notice]:
        return self._interruption() or self._rebalance()  # who goes needs no hint, nor one that can be read

    def _interruption(self) -> list[Notice]:
        found = self._look("spot/instance-action")
        if found is None:
            return []
        if found.get("action") not in ("terminate", "stop", "hibernate"):
            raise ValueError("an instance-action without an action")
        return [Notice("reclaim", "AWS", seconds(found.get("time")))]

    def _rebalance(self) -> list[Notice]:
        found = self._look("events/recommendations/rebalance")
        if found is None:
            return []
        if "noticeTime" not in found:
            raise ValueError("a rebalance recommendation without its time")
        return [Notice("rebalance", "AWS", seconds(found["noticeTime"]))]

    def _look(self, path: str) -> dict[str, Any] | None:
        """A document of the metadata; None where there is none now."""
        status, body = self._get(path)
        if status == 401:  # the token has expired: the machine may have slept
            self._token = ""
            status, body = self._get(path)
        if status == 404:
            return None
        if status != 200:
            raise ValueError(f"{path} was answered with {status}")
        document = json.loads(body)
        if not isinstance(document, dict):
            raise ValueError(f"{path} holds no document")
        return document

    def _get(self, path: str) -> tuple[int, bytes]:
        if not self._token or time.monotonic() >= self._renew:
            wish = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            status, body = self._ask("PUT", "/latest/api/token", wish)
            if status != 200:
                raise ValueError(f"a token was refused with {status}")
            self._token, self._renew = body.decode("ascii").strip(), time.monotonic() + RENEW_S
        return self._ask("GET", "/latest/meta-data/" + path, {"X-aws-ec2-metadata-token": self._token})

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        # Not by urllib: it would ask a proxy of the environment, for an address that means this machine alone.
        place = urllib.parse.urlsplit(self._url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=ANSWER_S)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(LONGEST)
        finally:
            connection.close()


KINDS: dict[str, Callable[[str], Source]] = {"ec2": Ec2}
"""Kind of a notice service -> what asks it, given its url."""


def seconds(text: Any) -> float | None:
    """`2026-11-20T08:22:00Z` as UTC seconds; None for what is no such time."""
    try:
        return float(calendar.timegm(time.strptime(str(text)[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def reason(notice: Notice, node: int) -> dict[str, Any]:
    """How a notice is told: in events, to the other nodes, and in the result of a run that ends for it."""
    say = f"{notice.by} may take node{node} back soon"
    if notice.kind == "reclaim":
        say = f"{notice.by} takes node{node} back"
        if notice.at is not None:
            say += time.strftime(" at %H:%M:%SZ", time.gmtime(notice.at))
    return {"kind": notice.kind, "by": notice.by, "say": say, "at": notice.at, "node": node}


def left_s(at: float | None, now: float) -> float:
    """Seconds until the machine goes (UTC seconds both), by a clock that may be wrong."""
    return LEAD_S - EVERY_S if at is None else min(LEAD_S, max(0.0, at - now))


def within_s(at: float | None, now: float) -> float:
    """In how many seconds a run must have stopped, for its results to be brought away after that."""
    return max(0.0, left_s(at, now) - RESERVE_S)


def watch(node: Node, done: threading.Event, hear: Callable[[Notice], None]) -> None:
    """Until `done`, or until the machine is taken back: tell each notice once. For the machine that a virtual node
    shares, its host's settings say where to ask."""
    settings, host = node.settings(), node.host()
    where = settings.get("notices") or (host.settings().get("notices") if host is not None else None) or {}
    kind = KINDS.get(where.get("kind", ""))
    if kind is not None and where.get("url"):
        source = kind(where["url"])
        every_s = float(where.get("every_s") or EVERY_S)
        threading.Thread(target=_watch, args=(source, every_s, done, hear), name="notices", daemon=True).start()


def _watch(source: Source, every_s: float, done: threading.Event, hear: Callable[[Notice], None]) -> None:
    told: set[str] = set()
    troubled = False
    while not done.is_set():
        try:
            found = source()
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not troubled:
                log(f"this machine's notices cannot be read: {type(error).__name__}: {error}; trying on")
            found, troubled = [], True
        for notice in found:
            if notice.kind not in told:
                told.add(notice.kind)
                hear(notice)
        if "reclaim" in told:
            return
        done.wait(every_s)
