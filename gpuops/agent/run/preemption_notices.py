"""Preemption notices: the provider announces on the machine itself that it takes the machine back, or may soon.

`node.json` says where to ask: `"notices": {"kind": "ec2", "url": …}`, with `every_s` for another interval than 5 s. On
a machine of a batch job (`daemon.hold_command`) a file tells it.
A thread polls the service while a run is on. A service that does not answer is no failure.
"""

from __future__ import annotations

import calendar
import json
import os
import threading
import time
from functools import partial
from typing import Any, Callable, List, Mapping, NamedTuple

from gpuops.agent.node import LOCAL, Node, log, read_json
from gpuops.agent.run_documents import Reason
from gpuops.agent.workers import WORKERS

POLL_INTERVAL_S = 5.0
"""AWS advises this interval (it gives two minutes of notice)."""
ANSWER_LIMIT_S = 2.0
MAX_ANSWER_BYTES = 65536
DEFAULT_NOTICE_S = 120.0
"""Time between a notice and the machine's end, where the notice does not say."""
UPLOAD_RESERVE_S = 40.0
"""How much of that time is reserved for storing results elsewhere."""
NOTICE_FILE = "notice.json"
"""`{"by", "at"}`, in a machine's own folder (`node.LOCAL`)."""
JOB_POLL_INTERVAL_S = 0.5
JOB_RESERVE_S = 1.0
"""The results of a batch job lie on a disk that stays, so that the run needs only the time to end."""
TOKEN_LIFETIME_S = 21600
TOKEN_RENEWAL_S = TOKEN_LIFETIME_S / 2


class Notice(NamedTuple):
    kind: str
    """`reclaim`: the machine is taken back; `rebalance`: it may be, soon."""
    by: str
    at: float | None
    """When the machine ends, or since when it may be taken back (UTC seconds)."""
    reserve_s: float = UPLOAD_RESERVE_S
    """How much of the time until then is reserved for storing results elsewhere."""


Source = Callable[[], List[Notice]]
"""Returns the current notices. Raises OSError or ValueError."""


class Ec2:
    """The instance metadata service, version 2: every request carries a token that the service issues."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._token = ""
        self._renew_at = 0.0

    def __call__(self) -> list[Notice]:
        # After an interruption a recommendation is not needed, and must not fail because it cannot be read.
        return self._interruption() or self._rebalance()

    def _interruption(self) -> list[Notice]:
        document = self._document("spot/instance-action")
        if document is None:
            return []
        if document.get("action") not in ("terminate", "stop", "hibernate"):
            raise ValueError("an instance-action without an action")
        return [Notice("reclaim", "AWS", parse_time(document.get("time")))]

    def _rebalance(self) -> list[Notice]:
        document = self._document("events/recommendations/rebalance")
        if document is None:
            return []
        if "noticeTime" not in document:
            raise ValueError("a rebalance recommendation without its time")
        return [Notice("rebalance", "AWS", parse_time(document["noticeTime"]))]

    def _document(self, path: str) -> dict[str, Any] | None:
        """A document of the metadata; None while it does not exist."""
        status, body = self._get(path)
        if status == 401:  # the token has expired: the machine may have been suspended
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
        if not self._token or time.monotonic() >= self._renew_at:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_LIFETIME_S)}
            status, body = self._request("PUT", "/latest/api/token", lifetime)
            if status != 200:
                raise ValueError(f"a token was refused with {status}")
            self._token, self._renew_at = body.decode("ascii").strip(), time.monotonic() + TOKEN_RENEWAL_S
        return self._request("GET", "/latest/meta-data/" + path, {"X-aws-ec2-metadata-token": self._token})

    def _request(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        import http.client  # here, since no agent but those of EC2 needs it: it takes long to load
        import urllib.parse

        # Not by urllib: it would use a proxy of the environment for an address that only this machine has.
        place = urllib.parse.urlsplit(self._url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=ANSWER_LIMIT_S)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_ANSWER_BYTES)
        except http.client.HTTPException as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()


def job_notices() -> list[Notice]:
    """What the process that holds this machine for a batch job has heard. In the node's folder."""
    document = read_json(os.path.join(LOCAL, NOTICE_FILE))
    return [Notice("reclaim", document["by"], document["at"], JOB_RESERVE_S)] if document else []


KINDS: dict[str, Callable[[str], Source]] = {"ec2": Ec2}
"""The class for each kind of service, called with its url."""


def parse_time(text: Any) -> float | None:
    """`2026-11-20T08:22:00Z` as UTC seconds; None for anything else."""
    try:
        return float(calendar.timegm(time.strptime(str(text)[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def notice_reason(notice: Notice, node: int) -> Reason:
    """The reason given in events, to the other nodes, and in the result of a run that ends for it."""
    say = f"{notice.by} may take node{node} back soon"
    if notice.kind == "reclaim":
        say = f"{notice.by} takes node{node} back"
        if notice.at is not None:
            say += time.strftime(" at %H:%M:%SZ", time.gmtime(notice.at))
    return Reason(notice.kind, say, by=notice.by, at=notice.at, node=node)


def remaining_s(at: float | None, now: float) -> float:
    """Seconds until the machine ends (UTC seconds both), 0 to DEFAULT_NOTICE_S: the machine's clock may be wrong."""
    return DEFAULT_NOTICE_S - POLL_INTERVAL_S if at is None else min(DEFAULT_NOTICE_S, max(0.0, at - now))


def stop_within_s(notice: Notice, now: float) -> float:
    """In how many seconds a run must have stopped, so that there is time to store its results elsewhere."""
    return max(0.0, remaining_s(notice.at, now) - notice.reserve_s)


def watch_notices(node: Node, done: threading.Event, notify: Callable[[Notice], None]) -> None:
    """Call `notify` once for each kind of notice, from a thread, until `done` or a `reclaim`.

    A virtual node uses the service in the settings of the node whose machine it shares.
    """
    if os.path.islink(node.path(LOCAL)):
        _start_polling(job_notices, JOB_POLL_INTERVAL_S, done, notify)
        return
    service = node.settings().notices
    if not service.kind:
        service = node.machine_node().settings().notices
    kind = KINDS.get(service.kind)
    if kind is not None and service.url:
        _start_polling(kind(service.url), float(service.every_s or POLL_INTERVAL_S), done, notify)


def _start_polling(source: Source, interval_s: float, done: threading.Event, notify: Callable[[Notice], None]) -> None:
    WORKERS.start(partial(_poll_notices, source, interval_s, done, notify), "notices")


def _poll_notices(source: Source, interval_s: float, done: threading.Event, notify: Callable[[Notice], None]) -> None:
    seen: set[str] = set()
    has_logged = False
    while not done.is_set():
        try:
            notices = source()
        except (OSError, ValueError) as error:
            if not has_logged:
                log(f"this machine's notices cannot be read: {type(error).__name__}: {error}; trying on")
            notices, has_logged = [], True
        for notice in notices:
            if notice.kind not in seen:
                seen.add(notice.kind)
                notify(notice)
        if "reclaim" in seen:
            return
        done.wait(interval_s)
