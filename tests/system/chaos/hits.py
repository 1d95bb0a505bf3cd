"""What may happen to a process at one of its requests to a fake provider, and who sees to it.

saboteur = Saboteur(fake)
process = saboteur.start(shell, Hit(Point("POST /pods"), "after"), "up", "runpod", "--yes")

before    it is killed, and what it asked for is not done       INT, TERM, HUP   the signal, while it waits
after     it is killed, done it is, no answer was sent          cut              it lives: done, and no answer
sent      it is killed with the answer                          dropped          not done, and no answer
broken    done, and 500 is answered                             silent           done, and nothing for ever
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import Shell, until
from tests.fakes.runpod import Fault, Request
from tests.processes import command_line

KILLS = ("before", "after", "sent")
LIVES = ("cut", "dropped", "broken", "silent")
SIGNALS = ("INT", "TERM", "HUP")
MOMENTS = {"after": "after", "sent": "sent"}
"""When each is done, as FakeRunPod.on_answer tells; what is not here: before."""
SILENT_S = 20.0
"""Longer than a process waits that was started with the driver `impatient`."""


@dataclass(frozen=True)
class Point:
    """A request of one process: the `nth` that fits, of those behind the first that fits `since`."""

    at: str
    """As in Fault."""
    nth: int = 1
    since: str = ""

    def __str__(self) -> str:
        told = f"{self.at} #{self.nth}" if self.nth > 1 else self.at
        return f"{told} after {self.since}" if self.since else told


@dataclass(frozen=True)
class Hit:
    point: Point
    how: str

    def __str__(self) -> str:
        return f"{self.how} {self.point}"


@dataclass
class Strike:
    """A hit that waits for its moment; `struck` once it came."""

    hit: Hit
    fits: Callable[[str, Any], bool]
    """Whether a request is one that a point names."""
    struck: threading.Event = field(default_factory=threading.Event)
    begun: bool = False
    count: int = 0
    request: Request | None = None

    def meets(self, request: Request) -> bool:
        point = self.hit.point
        if self.request is not None:
            return False
        if self.begun or not point.since:
            self.count += self.fits(point.at, request)
        self.begun = self.begun or bool(point.since and self.fits(point.since, request))
        return self.count == point.nth


class Saboteur:
    """Knows which process asks, and hits it once."""

    def __init__(self, fake: Any) -> None:
        self._fake = fake
        self._lock = threading.Lock()
        self._strikes: dict[int, Strike] = {}
        """By the number of the process."""
        self._of_guards: dict[Path, Strike] = {}
        self._listens = False

    def start(self, shell: Shell, hit: Hit | None, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Type a command that is hit."""
        driver = "impatient" if hit and hit.how == "silent" else None
        with self._lock:  # it asks nothing before it is known
            process = shell.start(*arguments, driver=driver, **options)
            if hit:
                self._strikes[process.pid] = Strike(hit, self.fits)
                self._listen()
        return process

    def expect_guard(self, shell: Shell, hit: Hit) -> Strike:
        """Hit the next guard of a home that asks anything."""
        with self._lock:
            self._of_guards[shell.home] = Strike(hit, self.fits)
            self._listen()
            return self._of_guards[shell.home]

    def _listen(self) -> None:
        """Only once there is somebody to hit: for each request all processes of the machine are searched."""
        if not self._listens:
            self._listens = True
            self._fake.on_answer(self._called)

    def struck(self, process: subprocess.Popen[str]) -> bool:
        return self._strikes[process.pid].struck.is_set()

    def _called(self, request: Request, moment: str) -> None:
        with self._lock:
            strike = self._strike_on(request.client_pid)
            if strike is None:
                return
            if moment == "before" and strike.meets(request):
                strike.request = request
            if strike.request is not request:
                return
        if moment == "before":
            self._prepare(request, strike.hit.how)
        if moment == MOMENTS.get(strike.hit.how, "before"):
            strike.struck.set()  # first: who is killed is not waited for
            self._do(request, strike.hit.how)

    def _strike_on(self, pid: int) -> Strike | None:
        if pid not in self._strikes:
            for home, strike in self._of_guards.items():
                if is_guard(pid, home):
                    self._strikes[pid] = strike
                    del self._of_guards[home]
                    break
        return self._strikes.get(pid)

    def _prepare(self, request: Request, how: str) -> None:
        this = f"{request.method} {request.path}"
        if how in ("before", "dropped"):
            request.drop()
        elif how in ("after", "cut"):
            request.lose()
        elif how == "broken":
            self._fake.play(Fault(this, status=500, detail="internal server error", takes_effect=True))
        elif how == "silent":
            self._fake.play(Fault(this, hang_s=SILENT_S, takes_effect=True, cut=True))

    def _do(self, request: Request, how: str) -> None:
        if how in KILLS:
            kill(request.client_pid)
        elif how in SIGNALS:
            os.kill(request.client_pid, getattr(signal, f"SIG{how}"))

    @staticmethod
    def fits(at: str, request: Request) -> bool:
        return Fault(at).fits(request.method, request.path, request.body)


def kill(pid: int) -> None:
    """SIGKILL, and until it is dead."""
    try:
        process = psutil.Process(pid)
        process.kill()
        until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, f"{pid} is dead")
    except psutil.NoSuchProcess:
        return


def is_held(shell: Shell, process: subprocess.Popen[str]) -> bool:
    """Stop a command, unless it is in the middle of its writing: its guard would wait for the ledger."""
    process.send_signal(signal.SIGSTOP)
    until(lambda: stands(process.pid), "it stands still")
    try:
        with closing(sqlite3.connect(shell.home / "ledger.db", timeout=0.5)) as ledger:
            ledger.execute("BEGIN IMMEDIATE")
            return True
    except sqlite3.OperationalError:
        process.send_signal(signal.SIGCONT)
        return False


def stands(pid: int) -> bool:
    """Whether all of a process' threads have stopped: one may be in the middle of a call to the system first."""
    try:
        found = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False  # one has ended meanwhile
    return all(state in "TtZX" for state in found)


def guards(shell: Shell) -> list[int]:
    """The guards of a home."""
    return [pid for pid in psutil.pids() if is_guard(pid, shell.home)]


def is_guard(pid: int, home: Path) -> bool:
    words = command_line(pid)
    return "gpuops.guard.daemon" in words and str(home) in words
