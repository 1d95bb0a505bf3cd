"""Mode `watchdog`: the node's outermost process. It keeps the lease, restarts a dead agent, and ends the machine.

It needs no network, no client and no agent: deadlines come from files and two clocks, and node.json names the command
that ends the machine. What it has read there it keeps: a script may remove the folder, and the machine would bill on.
Ending takes three steps: the agent is asked to stop its run and to store its results, then
every process is ended, then the machine.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import time
from typing import Any, Iterable, Sequence

from gpuops.agent import client_activity, lease_clock, processes
from gpuops.agent.daemon.start_mode import start_mode
from gpuops.agent.node import (
    HOLDER,
    LOCAL,
    Node,
    NodeSettings,
    local_path,
    log,
    parse_node,
    write_json,
)
from gpuops.agent.process_table import find_process
from gpuops.agent.result_storage import end_after_upload
from gpuops.agent.result_storage.wait_for_download import HeldRuns
from gpuops.agent.rpc.connect import HOLDER_KILLED, ask, is_holder_gone
from gpuops.agent.run_files import run_markers

LEASE_CHECK_INTERVAL_S = 2.0
"""Time between two checks of the lease: an end comes this much late at most."""
LEAVE_LIMIT_S = 90.0
"""Time that the agent may take for the last snapshot before everything is ended."""
LEAVE_MARGIN_S = 5.0
"""How much sooner the agent should have answered."""
FAREWELL_LIMIT_S = 60.0
"""Time after that in which connected clients may download the results of a run that the lease ended."""
HEALTHY_AGENT_S = 10.0
"""An agent that lived this long is restarted at once; for others the pause doubles."""
MIN_RESTART_PAUSE_S, MAX_RESTART_PAUSE_S = 0.2, 30.0
END_COMMAND_LIMIT_S = 150.0
"""Time limit of the program that ends the machine: at RunPod it sends several requests."""
END_RETRY_INTERVAL_S = 20.0
"""Pause after a failed attempt to end the machine, which is billed meanwhile."""


class Wake:
    """Sleeps until a signal or a time: signals become bytes in a pipe. One per process, made by its first thread."""

    def __init__(self, signals: Iterable[int]) -> None:
        self._reader, writer = os.pipe()
        for end in (self._reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for sign in signals:
            # A handler, even one that does nothing: an ignored signal would stay ignored in our children.
            signal.signal(sign, _ignore_signal)

    def wait(self, limit_s: float) -> set[int]:
        """The signals received, as soon as there is one; none after `limit_s`."""
        ready, _, _ = select.select([self._reader], [], [], max(0.0, limit_s))
        return set(os.read(self._reader, 4096)) if ready else set()


def _ignore_signal(_sign: int, _frame: Any) -> None:
    pass


def main(_mode: str, arguments: Sequence[str]) -> int:
    """`--node DIR`: watch until the node ends. Exits at once where another watchdog runs."""
    node, _ = parse_node(arguments)
    os.chdir(node.dir)
    lock = os.open(local_path("watchdog.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another watchdog runs
    processes.become_subreaper()
    record_process(node, "watchdog.json")
    Watchdog(node).watch()
    return 0


def record_process(node: Node, name: str) -> None:
    """Record this process, so that others can tell it from a later one with the same number.

    On a full disk it is only logged: the node must serve its results all the same, and come to its end.
    """
    me = find_process(os.getpid())
    try:
        write_json(node.path(name), {"pid": os.getpid(), "start": me.start if me else ""})
    except OSError as error:
        log(f"{name} cannot be written: {error}")


class Watchdog:
    """Of one node, in the node's folder."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._settings = node.settings()
        self._lease = lease_clock.read_lease(node)
        """The newest that could be read."""
        self._wake = Wake([signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        self._idle_timer = lease_clock.IdleTimer()
        self._held_runs: dict[str, HeldRuns] = {}
        """By the node's folder: of this node and of those that share its machine."""
        self._work_schedule = client_activity.WorkSchedule()
        self._agent: processes.Child | None = None
        self._agent_started = 0.0
        self._restart_pause_s = 0.0

    def watch(self) -> None:
        """Run until an end of the lease, SIGTERM, or `ended.json` (written by `end`); or until the folder is removed:
        who ends a node sends SIGTERM first, so that a script must have done it, and the machine is ended."""
        self._end_all()
        wait_s = 0.0
        while True:
            # Some batch systems signal every process of a job that ends: what holds the machine decides then.
            terminated = signal.SIGTERM in self._wake.wait(wait_s) and not os.path.exists(HOLDER)
            self._keep_agent_running()
            end = self._next_end()
            if terminated or self._has_ended():
                self._end_processes("end", "this node is being ended", "now")
                return
            if self._has_host_ended():
                self._end_processes("end", "the node whose machine this one shares has ended", "now")
                self._note_end("the node whose machine it shared has ended")
                return
            if is_holder_gone(self._node):
                self._end_processes("end", HOLDER_KILLED, "now")
                self._note_end(HOLDER_KILLED)
                shutil.rmtree(os.path.realpath(LOCAL), ignore_errors=True)
                return
            if self._is_removed():
                self._end_node("its folder was removed")
                return
            if end is not None and end.left_s <= 0:
                self._end_node(end.why)
                return
            wait_s = min(LEASE_CHECK_INTERVAL_S, end.left_s if end is not None else LEASE_CHECK_INTERVAL_S)

    def _next_end(self) -> lease_clock.End | None:
        now, lease = lease_clock.read_clocks(), self._read_lease()
        # Without an agent no run is on, whatever live.json says: its processes were ended with it.
        has_live_run = self._agent is not None and lease_clock.is_run_live()
        hold_s = self._hold_s()
        limit_s = lease_clock.idle_limit_s(lease, has_live_run, hold_s)
        if (
            limit_s is not None
            and self._work_schedule.is_due(now.mono, limit_s)
            and client_activity.is_person_at_work(self._node)
        ):
            self._node.touch()
        quiet_s = self._idle_timer.seconds(lease_clock.last_used_at(self._node), now)
        early_end_reason = end_after_upload.end_reason(self._node)
        return lease_clock.next_end(lease, now, quiet_s, has_live_run, hold_s, early_end_reason)

    def _hold_s(self) -> float | None:
        """How long results that would be lost with this machine are held for a client; None: nothing is held."""
        nodes = [self._node, *self._node.virtual_nodes()]
        self._held_runs = {node.dir: self._held_runs.get(node.dir) or HeldRuns(node) for node in nodes}
        durations = [runs.hold_s() for runs in self._held_runs.values()]
        return max([hold_s for hold_s in durations if hold_s is not None], default=None)

    def _read_lease(self) -> lease_clock.Lease:
        """The lease in force: what was read last, where its file is gone."""
        if document := lease_clock.read_document(self._node):
            self._lease = lease_clock.parse_lease(document)
        return self._lease

    def _read_settings(self) -> NodeSettings:
        """The settings as they are; what was read last, where their file is gone."""
        if self._node.settings_document():
            self._settings = self._node.settings()
        return self._settings

    def _has_ended(self) -> bool:
        """Whether the node was ended."""
        return os.path.exists("ended.json")

    def _is_removed(self) -> bool:
        """Whether the node's folder was removed. A disk that does not answer is no proof of that."""
        try:
            os.stat("node.json")
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return False

    def _has_host_ended(self) -> bool:
        """Whether this is a virtual node, and the node whose machine it shares has ended."""
        host = self._node.host()
        if host is None:
            return False
        return os.path.exists(host.path("ended.json")) or not os.path.exists(host.path("node.json"))

    def _keep_agent_running(self) -> None:
        processes.reap_orphans()
        if self._agent is not None and self._agent.poll() is not None:
            log(f"the agent ended ({self._agent.returncode}); ending what it had started")
            self._agent = None
            left = self._end_all()
            lived_s = time.monotonic() - self._agent_started
            doubled_s = min(MAX_RESTART_PAUSE_S, max(MIN_RESTART_PAUSE_S, 2 * self._restart_pause_s))
            self._restart_pause_s = 0.0 if lived_s > HEALTHY_AGENT_S else doubled_s
            log(f"{left} processes could not be ended; a new agent in {self._restart_pause_s:.1f} s")
            self._agent_started = time.monotonic()
        may_start = time.monotonic() >= self._agent_started + self._restart_pause_s
        if self._agent is None and may_start and not (self._has_ended() or self._is_removed()):
            try:
                self._start_agent()
            except OSError as error:
                log(f"the agent cannot be started, and is tried again: {error}")  # the lease goes on without it

    def _end_all(self, term_grace_s: float = processes.TERM_GRACE_S) -> int:
        """End every descendant, and every process with a marker of this node's runs. Returns how many are left."""
        left = processes.end_all(lambda: processes.descendant_processes(run_markers(self._node)), term_grace_s)
        processes.reap_orphans()
        return left

    def _start_agent(self) -> None:
        self._agent_started = time.monotonic()
        self._agent = start_mode(self._node, "agent", "--watchdog", str(os.getpid()))

    def _end_processes(self, kind: str, say: str, how: str, farewell_s: float = 0.0) -> None:
        """Ask the agent for an orderly end of its run, then end every process."""
        term_grace_s = 0.0  # the agent has finished by then
        try:
            limit_s = LEAVE_LIMIT_S + farewell_s
            request = {
                "kind": kind,
                "say": say,
                "how": how,
                "farewell_s": farewell_s,
                "within_s": limit_s - LEAVE_MARGIN_S,
            }
            ask("leave", request, limit_s=limit_s)
        except (OSError, ValueError) as error:
            log(f"the agent did not end its run by itself: {error}")
            term_grace_s = processes.TERM_GRACE_S
        self._end_all(term_grace_s)

    def _note_end(self, why: str) -> None:
        """In this node's own folder, never in one that was made in its place."""
        try:
            write_json("ended.json", {"at": time.time(), "why": why})
        except OSError as error:
            log(f"ended.json cannot be written: {error}")  # a full disk must not keep a machine alive

    def _end_node(self, why: str) -> None:
        log(f"ending this node: {why}")
        self._end_processes("lease", why, "graceful", FAREWELL_LIMIT_S)
        self._note_end(why)
        argv = self._read_settings().end
        if argv:
            self._move_boot_end()
        while argv and not run_end_command(argv):
            if self._terminated_within(END_RETRY_INTERVAL_S):
                return

    def _move_boot_end(self) -> None:
        """Let the watchdog that came with the machine end it, should we fail or its container restart."""
        now, hard_wall = time.time(), self._read_lease().hard_wall
        lease_clock.move_boot_end(self._read_settings().boot_watch, now if hard_wall is None else min(now, hard_wall))

    def _terminated_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if signal.SIGTERM in self._wake.wait(deadline - time.monotonic()):
                return True
        return False


def run_end_command(argv: Sequence[str]) -> bool:
    """Run the command that ends this machine for good. Returns whether it succeeded."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, cwd="/", timeout=END_COMMAND_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log(f"cannot end this machine: {error}")
        return False
    log(f"{argv[0]} ended with exit code {done.returncode}")
    return done.returncode == 0
