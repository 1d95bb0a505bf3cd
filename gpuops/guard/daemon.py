"""The guard of one cluster: a small detached process that lives while its cluster needs an end to be seen to.

It looks after what has no living owner process: undoes a half-made cluster, follows runs to their end, brings results
home, tears down, ends what has outlived its lease, and clears what is left. The guard itself never talks to a network,
so that nothing can hang it: each attempt is a child process, which is ended where it keeps its cluster from its end.
What was done is left as a notice, which the next command shows. The guard leaves when its cluster is gone and nothing
of it is listed any more.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, GpuopsError, find_auth_failure
from gpuops.core.file_lock import LockTimeout, file_lock
from gpuops.core.home import owner
from gpuops.core.platform import HERE
from gpuops.core.polling import Clock, Poller
from gpuops.core.reporting import LogReporter
from gpuops.core.settings import Settings, load_leniently, surroundings
from gpuops.core.signals import Signals
from gpuops.guard import guard_heartbeat, lease_time
from gpuops.guard.schedule import ATTEMPT_S, NOTICE_FAILURES, Job, next_job, retry_pause_s
from gpuops.guard.services import OF_GUARD
from gpuops.guard.start import command, ensure, last_words
from gpuops.ledger.database import RowGone
from gpuops.ledger.rows import ClusterRow, ClusterState, RunRow

TICK_S = 1.0
"""From one round to the next: how soon a dead owner process or the end of a lease is noticed."""
ATTEMPT_FAILED = 3
"""Exit status of an attempt that is to be made again, and has said why; another one could not even say that."""
CHILD_EXIT_TIMEOUT_S = 3600.0
"""How long a guard waits for its child once the cluster is gone: it may still fetch what a bucket has kept."""
TAKEOVER_S = 5.0
"""How long a new guard waits for the lock of one that is leaving."""


def main(home: Path, cluster: int) -> int:
    """Be the guard of a cluster until it needs none. A second guard of the same cluster leaves at once."""
    for name in ("SIGINT", HERE.hang_up):  # a terminal's signals are not for the guard
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(guard_heartbeat.lock_path(home, cluster), TAKEOVER_S))
        except LockTimeout:
            return 0
        guard_heartbeat.claim(home, cluster)
        guard = Guard(home, cluster)
        guard.watch()
    # A command may have seen this guard between its last round and the release of the lock, and have started none.
    if row := guard.wanted_row():
        ensure(home, row, waits=False)
    return 0


def make_context(home: Path, folder: Path | None = None) -> Context:
    """The guard's surroundings; with those of the project in `folder`: credentials may stand in its `.env`."""
    settings = load_leniently(folder, os.environ, {})[0] if folder else Settings()
    env = surroundings(settings, os.environ)
    return Context(
        home=home,
        owner=owner(home),
        folder=home,
        env=env,
        out=LogReporter(sys.stderr),
        signals=Signals(),
        services=OF_GUARD,
        dotenv=settings.dotenv,
    )


# -- the guard ------------------------------------------------------------------------------------


def is_removed(folder: Path) -> bool:
    """Whether a folder is gone. A disk that does not answer is no proof of that."""
    try:
        os.stat(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


class Child(Protocol):
    """An attempt that was started."""

    def poll(self) -> int | None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class ChildProcess:
    process: Any

    def poll(self) -> int | None:
        status: int | None = self.process.poll()
        return status

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def start_child(home: Path, cluster: int, job: Job, failures: int) -> Child:
    """Its standard input is a pipe from the guard: when the guard dies, the pipe ends, and so does the child."""
    argv = command(home, cluster, job.value, str(failures))
    return ChildProcess(subprocess.Popen(argv, stdin=subprocess.PIPE, cwd=home, **HERE.background[-1]))


class Guard:
    """Rounds over one cluster: each reads the ledger, starts an attempt where one is needed, and writes a heartbeat."""

    def __init__(
        self,
        home: Path,
        cluster: int,
        start: Callable[[Path, int, Job, int], Child] = start_child,
        clock: Clock | None = None,
    ) -> None:
        self._home = home
        self._cluster = cluster
        self._start_child = start
        self._clock = clock or Clock()
        self._child: Child | None = None
        self._job = Job.TEND
        self._started = self._clock.monotonic()
        """When the last attempt was started (monotonic), or this guard: the command that started it has just seen the
        cluster, so a child that looks at its nodes would find nothing new."""
        self._failures = 0
        """How many attempts in a row have failed."""
        self._retry_at = 0.0
        """When the next attempt may be started (monotonic)."""
        self._limit_s = ATTEMPT_S
        self._cleared = False
        """Whether an attempt was made to clear what is left."""
        self._over_since: float | None = None
        self._token: str | None = None
        """That of the cluster: in a new ledger another one may have its number."""
        self._beat: guard_heartbeat.Heartbeat | None = None
        self._first_sight: lease_time.FirstSight | None = None
        """Of the lease's end."""

    def watch(self) -> None:
        """Rounds until the cluster needs no guard. A bug does not end the guard either: nothing else is there."""
        failures = 0
        poller = Poller.every(self._clock, TICK_S)
        try:
            for _ in poller:
                try:
                    if not self.round():
                        break
                    failures = 0
                except Exception:
                    failures += 1
                    _log_failure()
                    if is_removed(self._home):
                        break  # as after a test, or `rm -r`: nothing is known of its cluster any more
                    poller.retry_after(retry_pause_s(failures))
        finally:
            if self._child:
                self._child.end()

    def round(self) -> bool:
        """Whether the guard stays."""
        row, runs, is_wanted, is_left = self._look()
        if row and self._beat is None:
            self._beat = guard_heartbeat.start(self._home, row, os.environ)
        self._collect(row)
        if row and is_wanted:
            self._over_since = None
            self._tend(row, runs)
        elif row and is_left and not self._child and not self._cleared:
            self._cleared = True
            self._start(Job.CLEAR)
        if self._beat and self._clock.monotonic() - self._beat.at >= guard_heartbeat.BEAT_INTERVAL_S:
            now = dataclasses.replace(self._beat, failures=self._failures)
            self._beat = guard_heartbeat.beat(self._home, self._cluster, now)
        return (row is not None and is_wanted) or self._finishes()

    def wanted_row(self) -> ClusterRow | None:
        """The cluster, where it needs a guard after all; not for what this one tried in vain to clear. One that has its
        number in a new ledger needs one as well: its command may have taken this guard for its own."""
        self._token = None
        row, _, is_wanted, is_left = self._look()
        if row and (is_wanted or (is_left and not self._cleared)):
            return row
        if row is None or (row.state is ClusterState.GONE and not is_left):
            guard_heartbeat.remove_files(self._home, self._cluster)
            lease_time.forget(self._home, self._cluster)
        return None

    def _look(self) -> tuple[ClusterRow | None, Sequence[RunRow], bool, bool]:
        """The cluster and its runs; whether it lives and needs a guard; whether something of it is still listed, or may
        come to be."""
        ledger = make_context(self._home).ledger
        try:
            row = ledger.cluster(self._cluster)
            self._token = row.token if self._token is None else self._token
            if row.token != self._token:
                return None, [], False, False
            is_gone = row.state is ClusterState.GONE
            runs = ledger.runs(cluster=row.id)
            is_left = is_gone and (bool(ledger.list_leftovers(row.id)) or ledger.has_open_intents(row.id))
            return row, runs, not is_gone and ledger.needs_guard(row), is_left
        except RowGone:
            return None, [], False, False
        finally:
            ledger.close()

    def _collect(self, row: ClusterRow | None) -> None:
        """What became of the last attempt, where it is over. For one that could not say why it failed (its code was
        removed, the system killed it) the notice is left here."""
        status = self._child.poll() if self._child else None
        if status is None:
            return
        self._child = None
        self._failures = self._failures + 1 if status else 0
        if (
            row
            and status not in (0, ATTEMPT_FAILED)
            and self._failures == NOTICE_FAILURES
            and self._job is not Job.CLEAR
        ):
            words = last_words(self._home)
            leave_notice(self._home, row, f"an attempt ended with {status}{': ' if words else ''}{words}")
        self._limit_s = self._limit_s if status else ATTEMPT_S
        self._retry_at = self._clock.monotonic() + (retry_pause_s(self._failures) if status else 0.0)

    def _tend(self, row: ClusterRow, runs: Sequence[RunRow]) -> None:
        clocks, ran_s = lease_time.read_clocks(self._clock), self._clock.monotonic() - self._started
        self._first_sight = first = lease_time.look(self._home, row, clocks, self._first_sight)
        job = next_job(
            row,
            runs,
            lease_time.lease_time(first, clocks, can_ask=row.state is ClusterState.UP),
            ran_s,
            self._limit_s,
            working=self._child is not None,
            rested=self._clock.monotonic() >= self._retry_at,
            is_sure=first is None or not first.is_in_doubt(clocks),
        )
        if job and self._child:
            self._replace(job)
        elif job:
            self._start(job)

    def _replace(self, job: Job) -> None:
        """An attempt had its time. One that takes long because a disk of the user's own is slow must not be ended at
        the same point for ever: the next has twice as long."""
        assert self._child
        self._child.end()
        if job is Job.END_AT_ONCE:
            self._limit_s *= 2.0
        self._start(job)

    def _start(self, job: Job) -> None:
        self._child, self._job = self._start_child(self._home, self._cluster, job, self._failures), job
        self._started = self._clock.monotonic()

    def _finishes(self) -> bool:
        """Whether the child is waited for although its cluster is gone: it clears, or has a last word to say."""
        if not self._child:
            return False
        now = self._clock.monotonic()
        self._over_since = now if self._over_since is None else self._over_since
        return self._job is Job.CLEAR or now - self._over_since <= CHILD_EXIT_TIMEOUT_S


# -- its child ------------------------------------------------------------------------------------


def run_attempt(home: Path, cluster: int, job: Job, failures: int) -> int:
    """One attempt for a cluster; `failures`: how many before it have failed. Returns 0, or ATTEMPT_FAILED."""
    try:
        ledger = make_context(home).ledger
        row = ledger.cluster(cluster)
        ledger.close()
    except Exception:
        _log_failure()
        return ATTEMPT_FAILED
    try:
        ctx = make_context(home, row.folder)
        try:
            _run_job(ctx, row, job)
            if failures >= NOTICE_FAILURES:
                ctx.ledger.add_notice(f"{row.name} is looked after again")
        finally:
            ctx.ledger.close()
    except Exception as error:
        if refused := find_auth_failure(error):
            guard_heartbeat.record_refusal(home, row, refused)
        _log_failure(row.name)
        if failures + 1 == NOTICE_FAILURES and job is not Job.CLEAR:
            leave_notice(home, row, getattr(error, "message", "") or f"{type(error).__name__}: {error}")
        return ATTEMPT_FAILED
    return 0


def _run_job(ctx: Context, row: ClusterRow, job: Job) -> None:
    if job is Job.CLEAR:
        from gpuops.clusters import leftovers

        leftovers.clear_leftovers(ctx, row)
    else:
        from gpuops.guard import cleanup

        cleanup.clean_up(ctx, row.id, saving=job is Job.TEND)
        guard_heartbeat.record_refusal(ctx.home, row, None)


def leave_notice(home: Path, row: ClusterRow, why: str) -> None:
    """The next command says that the guard fails. That this cannot be written down stops no guard."""
    give_up = f"`gpuops down {row.name} --force` gives up what does not answer"
    try:
        ledger = make_context(home).ledger
        ledger.add_notice(f"{row.name} cannot be looked after: {why}; the guard goes on trying, {give_up}")
        ledger.close()
    except (GpuopsError, sqlite3.Error):
        _log_failure(row.name)


def _exit_with_guard() -> None:
    """End this process at once when standard input ends: the next guard begins where it was, as after a crash."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 1):
                pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="guard").start()


def _log_failure(what: str = "the ledger") -> None:
    """A line for what a user could act on, a traceback for what is a bug. The log may lie on a full disk."""
    error = sys.exception()
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = traceback.format_exc()
    if isinstance(error, GpuopsError):
        hint = f" ({error.hint})" if isinstance(error, AuthFailed) and error.hint else ""
        text = f"{error.message}{hint}\n"
    separator = ": " if isinstance(error, GpuopsError) else "\n"
    with suppress(OSError):
        print(f"{timestamp} {what}{separator}{text}", end="", file=sys.stderr, flush=True)


def execute(arguments: Sequence[str]) -> int:
    """`HOME CLUSTER`: the guard; `HOME CLUSTER JOB FAILURES`: its child."""
    home, cluster = Path(arguments[0]), int(arguments[1])
    if len(arguments) == 2:
        return main(home, cluster)
    _exit_with_guard()
    return run_attempt(home, cluster, Job(arguments[2]), int(arguments[3]))


if __name__ == "__main__":
    sys.exit(execute(sys.argv[1:]))
