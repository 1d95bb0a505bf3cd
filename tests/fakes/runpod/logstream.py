"""A pod's log as server-sent events: what there is, then what comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from tests.fakes.runpod.clock import from_rfc3339, rfc3339
from tests.fakes.runpod.records import Pod

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "Connection": "keep-alive",
    "X-Accel-Buffering": "no",
    "Transfer-Encoding": "chunked",
}


def events(pod: Pod, query: Mapping[str, str], last_id: str, wait: Callable[[], bool]) -> Iterator[str]:
    """Pieces of the stream until `wait`, which lets time pass, says that it is the end, or the pod is gone."""
    since = query.get("since") or last_id.partition("/")[0]
    start = from_rfc3339(since) if since else 0.0
    source = query.get("source")

    def lines() -> list[tuple[float, str, str]]:
        return [one for one in list(pod.log) if one[1] == (source or one[1]) and one[0] >= start]

    sent = max(0, len(lines()) - int(query.get("tail", "100")))
    while True:
        new = lines()[sent:]
        yield "".join(_event(at, one) for at, one in enumerate(new, sent)) or ": keep-alive\n\n"
        sent += len(new)
        if not pod.bills or wait():
            return


def _event(at: int, line: tuple[float, str, str]) -> str:
    moment = rfc3339(line[0])
    return f"id: {moment}/{at:012d}\ndata: {json.dumps({'ts': moment, 'source': line[1], 'line': line[2]})}\n\n"
