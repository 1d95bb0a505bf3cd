"""Sleeping until a signal or a time: how the watchdog's and the agent's first threads spend their lives."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import time
from typing import Any, Iterable, Sequence

from gpuops.agent import lease, processes, sessions
from gpuops.agent.daemon.init import open_log
from gpuops.agent.node import Node, log, node_of, program, write_json
from gpuops.agent.processes import find
from gpuops.agent.retain import early_end
from gpuops.agent.retain.hold import Held
from gpuops.agent.rpc.connect import ask
from gpuops.agent.run_files import markers


class Wake:
    """Signals become bytes in a pipe. To be made by the first thread; one per process."""

    def __init__(self, signals: Iterable[int]) -> None:
        self._reader, writer = os.pipe()
        for end in (self._reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for sign in signals:
            # A handler, even one that does nothing: an ignored signal would stay ignored in our children.
            signal.signal(sign, _nothing)

    def wait(self, limit_s: float) -> set[int]:
        """The signals that came, as soon as one does; none after `limit_s`."""
        ready, _, _ = select.select([self._reader], [], [], max(0.0, limit_s))
        return set(os.read(self._reader, 4096)) if ready else set()


def _nothing(_sign: int, _frame: Any) -> None:
    pass


TICK_S = 2.0
"""How often the lease is looked at; an end is kept to one tick."""
LEAVE_S = 90.0
"""How long the agent may take for the last snapshot before everything is ended, in seconds."""
SPARE_S = 5.0
"""How much sooner the agent should have answered."""
FAREWELL_S = 60.0
"""How long whoever is connected may take after that to fetch the results of a run that the lease ended."""
HEALTHY_S = 10.0
"""An agent that lived this long is started again at once; otherwise there is a growing pause."""
END_S = 150.0
"""How long what ends the machine may take, in seconds: at RunPod that is a round of several requests."""
AGAIN_S = 20.0
"""From one failed attempt to end the machine to the next; the bill goes on meanwhile."""


def main(_mode: str, arguments: Sequence[str]) -> int:
    node, _ = node_of(arguments)
    os.chdir(node.dir)
    lock = os.open("watchdog.lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another one watches already
    processes.become_subreaper()
    note_self(node, "watchdog.json")
    Watchdog(node).watch()
    return 0


def note_self(node: Node, name: str) -> None:
    """Write who we are, so that others can tell us from a later process with the same number."""
    me = find(os.getpid())
    write_json(node.path(name), {"pid": os.getpid(), "start": me.start if me else ""})


class Watchdog:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._wake = Wake([signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        self._quiet = lease.Quiet()
        self._held: dict[str, Held] = {}
        """By folder: of this node, and of those that share its machine."""
        self._look = sessions.Look()
        self._agent: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._pause_s = 0.0

    def watch(self) -> None:
        """Until an end of the lease, SIGTERM, or `ended.json` (written by `end`)."""
        self._clear()
        wait_s = 0.0
        while True:
            terminated = signal.SIGTERM in self._wake.wait(wait_s)
            self._tend_agent()
            end = self._next_end()
            if terminated or self._has_ended():
                self._close("end", "this node is being ended", "now")
                return
            if self._goes_with_host():
                self._close("end", "the node whose machine this one shares has ended", "now")
                self._note_end("the node whose machine it shared has ended")
                return
            if end is not None and end.left_s <= 0:
                self._end(end.why)
                return
            wait_s = min(TICK_S, end.left_s) if end is not None else TICK_S

    def _next_end(self) -> lease.End | None:
        now, noted, live, hold_s = lease.read_clocks(), lease.read(self._node), lease.is_live(), self._hold_s()
        limit_s = lease.unused_limit(noted, live, hold_s)
        if limit_s is not None and self._look.due(now.mono, limit_s) and sessions.at_work(self._node):
            self._node.touch()
        quiet_s = self._quiet.seconds(lease.touched(self._node), now)
        return lease.next_end(noted, now, quiet_s, live, hold_s, early_end.why(self._node))

    def _hold_s(self) -> float | None:
        """For how long something that would go with this machine waits for someone; None: nothing is held."""
        nodes = [self._node, *self._node.beside()]
        self._held = {node.dir: self._held.get(node.dir) or Held(node) for node in nodes}
        spans = [held.hold_s() for held in self._held.values()]
        return max([span for span in spans if span is not None], default=None)

    def _has_ended(self) -> bool:
        """Said by a file, or by there being none: whoever removed the node's folder wanted the node gone."""
        return os.path.exists("ended.json") or not os.path.exists("node.json")

    def _goes_with_host(self) -> bool:
        """Whether the node whose machine this one shares is over: it has no idle end of its own, and would stay."""
        host = self._node.host()
        if host is None:
            return False
        return os.path.exists(host.path("ended.json")) or not os.path.exists(host.path("node.json"))

    def _tend_agent(self) -> None:
        processes.reap()
        if self._agent is not None and self._agent.poll() is not None:
            log(f"the agent ended ({self._agent.returncode}); ending what it had started")
            self._agent = None
            left = self._clear()
            lived = time.monotonic() - self._started
            self._pause_s = 0.0 if lived > HEALTHY_S else min(30.0, max(0.2, 2 * self._pause_s))
            log(f"{left} processes could not be ended; a new agent in {self._pause_s:.1f} s")
            self._started = time.monotonic()
        if self._agent is None and not self._has_ended() and time.monotonic() >= self._started + self._pause_s:
            self._start_agent()

    def _clear(self, polite_s: float = processes.POLITE_S) -> int:
        """End every descendant, and what carries a marker of this node's runs; how many are left."""
        left = processes.end_all(lambda: processes.below(markers(self._node)), polite_s)
        processes.reap()
        return left

    def _start_agent(self) -> None:
        self._started = time.monotonic()
        with open_log(self._node, "agent.log") as errors:
            self._agent = processes.start(
                [*program(), "agent", "--node", self._node.dir, "--watchdog", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd=self._node.dir,
            )

    def _close(self, kind: str, say: str, how: str, farewell_s: float = 0.0) -> None:
        """Ask the agent for an orderly end of its run, then end whatever there is."""
        polite_s = 0.0  # the agent has nothing left to do then
        try:
            limit_s = LEAVE_S + farewell_s
            wish = {"kind": kind, "say": say, "how": how, "farewell_s": farewell_s, "within_s": limit_s - SPARE_S}
            ask("leave", wish, limit_s=limit_s)
        except (OSError, ValueError) as error:
            log(f"the agent did not end its run by itself: {error}")
            polite_s = processes.POLITE_S
        self._clear(polite_s)

    def _note_end(self, why: str) -> None:
        write_json(self._node.path("ended.json"), {"at": time.time(), "why": why})

    def _end(self, why: str) -> None:
        log(f"ending this node: {why}")
        self._close("lease", why, "graceful", FAREWELL_S)
        try:
            self._note_end(why)
        except OSError as error:
            log(f"that this node has ended could not be noted: {error}")  # a full disk keeps no machine alive
        argv = self._node.settings().get("end")
        if argv:
            self._tell_boot_watch()
        while argv and not run_end(argv):
            if self._terminated_within(AGAIN_S):
                return

    def _tell_boot_watch(self) -> None:
        """What came with the machine ends it, too, where we cannot, or its container starts again."""
        now, hard = time.time(), lease.read(self._node).get("hard_wall")
        lease.tell_boot_watch(self._node.settings().get("boot_watch"), now if hard is None else min(now, hard))

    def _terminated_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if signal.SIGTERM in self._wake.wait(deadline - time.monotonic()):
                return True
        return False


def run_end(argv: Any) -> bool:
    """Run what ends this machine for good; whether that is under way."""
    try:
        code = subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=END_S, check=False).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        log(f"cannot end this machine: {error}")
        return False
    log(f"{argv[0]} ended with exit code {code}")
    return code == 0
