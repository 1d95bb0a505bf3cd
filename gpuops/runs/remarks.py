"""What is said beside a run's own lines: that it has been silent for long, what a provider says of its machines, that
the end of its nodes is near, and once how to see its curves."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpuops.core.output import span
from gpuops.runs.log_lines import STREAM
from gpuops.sync import RunHome

SILENT_S = 120.0
"""So long without a byte from any rank is worth a remark."""
AGAIN_S = 600.0
"""So long after a remark, and without a byte, is worth another."""
LOOK_S = 5.0
"""How often it is looked whether TensorBoard's files have come home."""
EVENTS = "events.out.tfevents*"
"""What TensorBoard calls its files."""
NODE_EVENTS = "events.jsonl"
NOW = {
    "reclaim": "the run stops, with a snapshot where its script makes one",
    "rebalance": "the run goes on; a snapshot was asked for",
}
"""What is done, by the kind of a notice."""
ONE_S = 60.0
"""What all nodes say of their common end within so many seconds is one thing, however far their clocks are apart."""


class Remarks:
    """Beside one run that is followed. `heard` is called from any thread, `look` at every look at the run."""

    def __init__(
        self,
        say: Callable[[str], None],
        home: RunHome,
        folder: Path,
        how_to_look: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._home = home
        self._folder = folder
        self._how = how_to_look
        self._clock = clock
        self._lock = threading.Lock()
        self._heard = clock()
        self._said: float | None = None
        """When the silence was last remarked on."""
        self._looked = self._heard
        self._board_said = False
        self._events: dict[int, bytes] = {}
        """By node, what has come of a line that is not complete yet."""
        self._notices: list[str] = []
        self._ends: list[float] = []
        """When the nodes asked for a snapshot before their end (UTC seconds)."""

    def heard(self, node: int, stream: str, _offset: int, data: bytes) -> None:
        """Bytes of a stream have come (`follow.OnBytes`)."""
        if stream == NODE_EVENTS:
            *lines, self._events[node] = (self._events.get(node, b"") + data).split(b"\n")
            self._notices += filter(None, map(self._notice, lines))
        if STREAM.fullmatch(stream):
            with self._lock:
                self._heard = self._clock()

    def _notice(self, line: bytes) -> str:
        say, at = notice(line)
        with self._lock:
            if at is not None and any(abs(at - before) < ONE_S for before in self._ends):
                return ""
            self._ends += [at] if at is not None else []
        return say

    def look(self) -> None:
        self.news()
        now = self._clock()
        with self._lock:
            silent = now - self._heard
        if silent >= SILENT_S if self._said is None else min(silent, now - self._said) >= AGAIN_S:
            self._said = now
            self._say(f"nothing was printed by any rank for {span(silent)}; what node0 does: {self._how}")
        if now - self._looked >= LOOK_S and not self._board_said:
            self._looked = now
            if line := board(self._home, self._folder, live=True):
                self._board_said = True
                self._say(line)

    def news(self) -> None:
        """What has come up about machines, also once the run is over."""
        while self._notices:
            self._say(self._notices.pop(0))


def notice(line: bytes) -> tuple[str, float | None]:
    """What to say of an event of a node: of what its provider has announced, and of its end. Of that also when it was
    (UTC seconds), since every node tells it. Empty for all else."""
    from gpuops.transport import answers

    event = answers.event(line)
    reason = event.get("reason") if event else None
    if not event or not reason:
        return "", None  # a node's words: cut off, or none of ours
    if event["event"] == "notice" and reason["kind"] in NOW:
        return f"{reason.get('say')}; {NOW[reason['kind']]}", None
    if event["event"] == "snapshot" and reason["kind"] == "lease" and "from" not in reason:
        return f"{reason.get('say')}: a snapshot was asked for", event["at"]
    return "", None


def how_to_look(cluster: str, *, gpus: bool) -> str:
    """The command that shows what a node is busy with."""
    return f"gpuops ssh {cluster} -- {'nvidia-smi' if gpus else 'top -b -n 1'}"


def board(home: RunHome, folder: Path, *, live: bool = False) -> str:
    """How to see what a run wrote for TensorBoard, typed in `folder`; empty where it wrote nothing for it.

    `live`: more is to come. Each version of a file that comes home takes the place of the one before; TensorBoard's
    fast loader holds on to the first and shows nothing new (measured with 2.21), the other one follows.
    """
    found = [path.parent for path in home.out.rglob(EVENTS)]
    if not found:
        return ""
    logdir = Path(os.path.commonpath(found))
    shown = logdir.relative_to(folder) if logdir.is_relative_to(folder) else logdir
    return f"curves: tensorboard {'--load_fast=false ' * live}--logdir {shlex.quote(str(shown))}"
