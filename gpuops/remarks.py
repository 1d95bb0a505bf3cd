"""What is said beside a run's own lines: that it has been silent for long, and once how to see its curves."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpuops.logs import STREAM
from gpuops.output import span
from gpuops.results import RunHome

SILENT_S = 120.0
"""So long without a byte from any rank is worth a remark."""
AGAIN_S = 600.0
"""So long after a remark, and without a byte, is worth another."""
LOOK_S = 5.0
"""How often it is looked whether TensorBoard's files have come home."""
EVENTS = "events.out.tfevents*"
"""What TensorBoard calls its files."""


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

    def heard(self, _node: int, stream: str, _offset: int, _data: bytes) -> None:
        """Bytes of a stream have come (`follow.OnBytes`)."""
        if STREAM.fullmatch(stream):
            with self._lock:
                self._heard = self._clock()

    def look(self) -> None:
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
