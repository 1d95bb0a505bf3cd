"""A run of numbered lines whose every byte is written twice: to its log, and beside it where nothing of ours looks.

`Counting` starts such a run through the real command line, finds its processes, and compares.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import HANG_S, Shell, until

PROGRAM = Path(__file__).parent / "programs" / "count.py"
PLAIN = ("run", "--nodes", "2", "--all-nodes")
TORCHRUN = ("train", "multinode", "--nodes", "2", "--gpus", "1")


MEETS = """
import os, socket, time
world = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
time.sleep(0.3)
"""
"""How a script begins whose ranks are seen to meet, without the seconds of torch: one that never does is either too
quick or called apart, as busy as the machine is. It stays for some of the agent's looks at it."""


class Said(threading.Thread):
    """What a command says, taken as it comes, as a terminal takes it: a pipe that nobody reads holds up who writes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self.streams = ("", "")
        self._process = process
        self.start()

    def run(self) -> None:
        self.streams = self._process.communicate()


@dataclass
class Counting:
    """A run of two nodes with one counter each: `who` is 0 on node0 and 1 on node1."""

    shell: Shell
    side: Path
    kind: Sequence[str] = PLAIN
    options: dict[str, Any] = field(default_factory=dict)
    """Of the command's process (`Shell.start`)."""
    process: subprocess.Popen[str] = field(init=False)
    said: Said = field(init=False)

    @property
    def run(self) -> str:
        return "python3-1" if self.kind[0] == "run" else "count-1"

    def start(self, *counter: str, flags: Sequence[str] = (), until_line: int = 20) -> Counting:
        """Type the command; come back once every counter has counted so far and the lines come home."""
        self.make_sides()
        self.shell.write("count.py", PROGRAM.read_text())
        script = ["--", "python3", "count.py"] if self.kind[0] == "run" else ["count.py", "--"]
        self.process = self.shell.start(*self.kind, *flags, *script, str(self.side), *counter, **self.options)
        self.said = Said(self.process)
        self.wait_for(until_line)
        return self

    def make_sides(self) -> None:
        self.side.mkdir(exist_ok=True)

    def side_of(self, who: int) -> Path:  # noqa: ARG002
        """Where a counter writes beside its log, as this test sees it."""
        return self.side

    def beside(self, who: int) -> Path:
        return self.side_of(who) / f"{who}.txt"

    def wait_for(self, line: int) -> None:
        def there() -> bool:
            if self.process.poll() is not None and self.process.returncode >= 0:
                raise AssertionError(f"it ended: {self.end()}")
            return all(self.home(who).count(b"\n") > line for who in (0, 1))

        until(there, f"line {line} of both counters at home")

    def wait_beside(self, more: int = 20) -> None:
        """Until the counters have gone on, whoever sees it."""
        before = {who: self.beside(who).stat().st_size for who in (0, 1)}
        until(
            lambda: all(self.beside(who).stat().st_size > size + more for who, size in before.items()),
            "that they count on",
        )

    def enough(self) -> None:
        """Let the counters end well."""
        for who in (0, 1):
            (self.side_of(who) / "enough").touch()

    def end(self) -> subprocess.CompletedProcess[str]:
        self.said.join(HANG_S)
        assert not self.said.is_alive(), "the command does not end"
        return subprocess.CompletedProcess(self.kind, self.process.returncode, *self.said.streams)

    # Where its processes are.

    def node(self, index: int) -> Path:
        (folder,) = (self.shell.home / "local").glob(f"*/n{index}")
        return folder

    def pid(self, what: str, index: int) -> int:
        """Of `agent`, `watchdog`, `launcher`, `wrapper` or `worker` on one node."""
        return int(until(lambda: self._noted(what, index), f"{what} of node{index} is noted"))

    def _noted(self, what: str, index: int) -> int:
        """0 while its number is not written down: the counters count already."""
        try:
            return self._written(what, index)
        except (OSError, StopIteration):
            return 0

    def _written(self, what: str, index: int) -> int:
        if what in ("agent", "watchdog"):
            return int(_read(self.node(index) / f"{what}.json")["pid"])
        if what == "launcher":
            return int(self.event(index, "started")["pid"])
        record = _read(self.node(index) / "runs" / self.run / "ranks" / f"{index}.json")
        return int(record["pid" if what == "worker" else what])

    def kill(self, what: str, index: int, sign: int = signal.SIGKILL) -> None:
        os.kill(self.pid(what, index), sign)

    def kill_together(self, index: int, *whats: str) -> None:
        """At once: none of them sees another one's end."""
        pids = [self.pid(what, index) for what in whats]
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, sign)

    def event(self, index: int, kind: str) -> dict[str, Any]:
        return next(event for event in self._events(index) if event["event"] == kind)

    def has_event(self, index: int, kind: str) -> bool:
        return any(event["event"] == kind for event in self._events(index))

    def _events(self, index: int) -> list[dict[str, Any]]:
        text = (self.node(index) / "runs" / self.run / "events.jsonl").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # one may be half written

    # What it left.

    def home(self, who: int) -> bytes:
        """What came home of a counter's output."""
        stream = "launcher.out" if self.kind[0] == "run" else f"rank{who}.out"
        path = self.shell.folder / "runs" / self.run / "logs" / f"node{who}" / stream
        return path.read_bytes() if path.exists() else b""

    def expect_every_byte(self) -> None:
        """The log at home is what the counter wrote: it writes to the log first, so one line may not be beside it."""
        for who in (0, 1):
            count = self.beside(who).read_bytes().count(b"\n")
            wrote = [b"".join(line(who, n) for n in range(size)) for size in (count, count + 1)]
            assert self.beside(who).read_bytes() == wrote[0]
            assert self.home(who) in wrote, f"{count} lines written, home ends with {self.home(who)[-200:]!r}"

    def expect_nothing_left(self) -> None:
        """No process of the run lives, not even those without a name, an environment or a parent; no node is left."""
        self.shell.expect_clean()
        self.expect_children_gone()

    def expect_children_gone(self) -> None:
        noted = [path.read_text().split() for path in self.side.glob("*.child")]
        assert len(noted) >= 2, "the counters started no children"
        assert not [pid for pid, start in noted if lives(int(pid), float(start))]

    def verdict(self) -> dict[str, Any]:
        """What the ledger says of it."""
        (row,) = self.shell.json("runs")["runs"]
        return dict(row)


def line(who: int, number: int) -> bytes:
    """As programs/count.py writes it."""
    return f"{who} counts {number} with some bytes behind it: {'.' * (number % 50)}\n".encode()


def remove(folder: Path) -> None:
    """A folder in which others write meanwhile."""

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    until(gone, f"the end of {folder}")


def lives(pid: int, start: float) -> bool:
    """Whether this very process runs; `start` as psutil gives it."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - start) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document
