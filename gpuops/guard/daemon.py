"""The guard: a small detached process that is there while anything of ours is.

It looks after what has no living owner process: undoes half-made clusters, follows runs to their end,
brings results home, tears down, and ends what has outlived its lease. What it did it leaves as
a notice, which the next command shows. One guard at a time; it leaves when nothing is left.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core.errors import AuthFailed, GpuopsError
from gpuops.core.platform import HERE

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from gpuops.core.context import Context
    from gpuops.core.processes import Identity
    from gpuops.ledger.store import ClusterRow, RunRow

TICK_S = 1.0
LEASE_MARGIN_S = 60.0
"""The node's own watchdog goes first; the guard is the second dead-man."""
RETRY_S = 30.0
RETRY_SLOW_S = 300.0
"""What fails is tried again after the first, then ever more seldom, at least so often."""
TOLD_ROUNDS = 3
"""After so many failures in a row the next command tells of them."""
LOOK_S = 60.0
"""How often a cluster that is simply up is looked at: its nodes may have ended by themselves."""
HANG_S = 600.0
"""After this a thread whose cluster has outlived its lease is not waited for: longer than bringing home takes."""
LEDGER_TRIES = 40
"""How often in a row the ledger may fail before the guard leaves; the next command starts another."""
LOCK = "guard.lock"
LAST_WORDS_S = 3600.0
"""So long a guard stays for what its threads still have to do once their clusters are gone: a word of it, or what a
bucket has kept."""
SECOND_S = 5.0
"""So long a guard waits for one that may be leaving."""
RELIEF_S = 40.0
"""So long the guard that relieves another waits for it to leave."""


def ensure(home: Path, provider: str | None = None) -> None:
    """Start a guard unless one runs; returns at once. The process is detached: no terminal, own session.

    `provider`: where something is about to be rented with the keys of this environment. A guard without them is
    relieved.
    """
    from filelock import FileLock, Timeout

    from gpuops.core.processes import start_background
    from gpuops.guard import guardkeys

    environ: Mapping[str, str] = os.environ
    try:
        with FileLock(home / LOCK, timeout=0):
            pass
    except Timeout:
        if not guardkeys.unfit(home, os.environ, provider):
            return
        environ = guardkeys.joined(home, os.environ, provider)
        guardkeys.ask_relief(home)
    with open(home / "guard.log", "ab") as log:
        start_background(
            [sys.executable, "-m", "gpuops.guard.daemon", str(home)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env={**environ, "PYTHONSAFEPATH": "1"},
        )


def main(home: Path) -> int:
    """Keep watch until no cluster is left. A second guard leaves at once."""
    import signal

    from filelock import FileLock

    from gpuops.guard import guardkeys

    for name in ("SIGINT", HERE.hang_up):  # a terminal's signals are not for us
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if asked := guardkeys.relief_asked(home):
        guardkeys.wait_for_relief(home)
    lock = FileLock(home / LOCK, timeout=RELIEF_S if asked else SECOND_S)
    if not _is_ours(lock, home):
        return 0
    try:  # no `with`: it would take the lock a second time, and not give it back
        guardkeys.note(home, os.environ)
        seen_off = _watch(home)
        if guardkeys.relieved(home):
            os._exit(0)  # at once, whatever its threads are at: who takes over begins where they were, as after a crash
    finally:
        lock.release()
    # A cluster may have been intended between our last look and the release of the lock.
    ledger = _context(home).ledger
    if ledger.is_guard_wanted(seen_off):
        ensure(home)
    return 0


def _is_ours(lock: BaseFileLock, home: Path) -> bool:
    """Whether we are the guard. Of two that two commands have started at once, one waits in vain; where the other has
    not its keys, it takes over from that one."""
    from filelock import Timeout

    from gpuops.guard import guardkeys

    try:
        lock.acquire()
        return True
    except Timeout:
        if not guardkeys.unfit(home, os.environ):
            return False
    environ = guardkeys.joined(home, os.environ)
    guardkeys.wait_for_relief(home)
    try:
        lock.acquire(timeout=RELIEF_S)
    except Timeout:
        return False
    os.environ.clear()
    os.environ.update(environ)
    return True


def _context(home: Path, folder: Path | None = None) -> Context:
    """The guard's surroundings; with those of the project in `folder`: credentials may stand in its `.env`."""
    from gpuops.core.context import Context
    from gpuops.core.reporting import LogReporter
    from gpuops.core.settings import Settings, load_leniently, owner, surroundings
    from gpuops.core.signals import Signals
    from gpuops.guard.services import SERVICES

    settings = load_leniently(folder, os.environ, {})[0] if folder else Settings()
    env = surroundings(settings, os.environ)
    return Context(
        home=home,
        owner=owner(home),
        folder=home,
        env=env,
        out=LogReporter(sys.stderr),
        signals=Signals(),
        services=SERVICES,
        dotenv=settings.dotenv,
    )


def _watch(home: Path) -> set[int]:
    """Until there is nothing more to do. Returns the clusters whose rest was seen off, or not for all it was tried."""
    from gpuops.guard import guardkeys

    tending: dict[int, tuple[threading.Thread, float]] = {}
    failures = 0
    over: float | None = None
    while failures < LEDGER_TRIES and not guardkeys.relieved(home):
        try:
            if _look(home, tending):
                over = None
            else:
                over = time.monotonic() if over is None else over
                if not _are_at_work(tending) or time.monotonic() - over > LAST_WORDS_S:
                    break
            failures = 0
            time.sleep(TICK_S)
        except Exception:  # a bug, too: what is up has nobody else
            failures += 1
            _log_failure()
            time.sleep(RETRY_S)
    return {id for id, (thread, _) in tending.items() if isinstance(thread, _SeeingOff)}


def _look(home: Path, tending: dict[int, tuple[threading.Thread, float]]) -> bool:
    """Give every cluster that needs it a thread, one at a time each. Returns whether there is still one to watch."""
    ctx = _context(home)
    try:
        parting = _see_off(home, ctx.ledger.parting(), tending)
        rows = [row for row in ctx.ledger.clusters() if ctx.ledger.wants_guard(row)]
        for row in rows:
            thread, began = tending.get(row.id, (None, -LOOK_S))
            alive = thread is not None and thread.is_alive()
            if alive and not _hangs(row, time.time(), time.monotonic() - began):
                continue
            if needs_tending(row, ctx.ledger.runs(cluster=row.id), time.time(), ctx.me, time.monotonic() - began):
                rounds = thread.rounds if isinstance(thread, _Tending) else 0
                again = alive and _had_its_time(row, time.time(), time.monotonic() - began)
                tending[row.id] = (_Tending(home, row, rounds, saving=not again), time.monotonic())
                tending[row.id][0].start()
    finally:
        ctx.ledger.close()
    return bool(rows) or parting


def _see_off(home: Path, parting: Sequence[ClusterRow], tending: dict[int, tuple[threading.Thread, float]]) -> bool:
    """A thread for each cluster that is gone and still listed. Returns whether one of them is at it."""
    for row in parting:
        thread, _ = tending.get(row.id, (None, 0.0))
        if not (isinstance(thread, _SeeingOff) or (thread and thread.is_alive())):
            tending[row.id] = (_SeeingOff(home, row), time.monotonic())
            tending[row.id][0].start()
    return any(tending[row.id][0].is_alive() for row in parting)


def _are_at_work(tending: Mapping[int, tuple[threading.Thread, float]]) -> bool:
    """Whether a thread is about to say what became of a cluster: it would die with this process."""
    return any(thread.is_alive() and not getattr(thread, "rests", False) for thread, _ in tending.values())


def needs_tending(row: ClusterRow, runs: Sequence[RunRow], now: float, me: Identity, looked_s: float) -> bool:
    """Whether a cluster has outlived its lease, or has something to be done and nobody who does it.

    `now`: UTC seconds; `me`: this guard, which starts again where an attempt of its own failed;
    `looked_s`: seconds since it was tended last.
    """
    if row.is_overdue(now - LEASE_MARGIN_S):
        return True
    if row.has_live_owner(besides=me):
        return False
    kept = [run.has_live_owner(besides=me) for run in runs if run.state != "home"]
    over = row.ephemeral and not any(kept)
    return row.state != "up" or over or not all(kept) or looked_s >= LOOK_S


def _hangs(row: ClusterRow, now: float, began_s: float) -> bool:
    """Whether a thread that began so long ago keeps its cluster from its end: another must do without it.

    One from before the end does not know of it: it follows a run, or waits for a node that never answers.
    """
    end = row.end
    late = now - end if end is not None else 0.0
    return late > LEASE_MARGIN_S and (began_s > late or began_s >= HANG_S)


def _had_its_time(row: ClusterRow, now: float, began_s: float) -> bool:
    """Whether a thread that began so long ago has known of the end all the while."""
    end = row.end
    return end is not None and HANG_S <= began_s <= now - end


class _Tending(threading.Thread):
    """One cluster, in a thread and with a ledger of its own. What fails is tried again, ever more seldom."""

    def __init__(self, home: Path, row: ClusterRow, rounds: int, *, saving: bool) -> None:
        super().__init__(daemon=True, name=f"tend {row.name}")
        self.rounds = rounds
        """How often in a row it has failed."""
        self.rests = False
        """Whether it only waits for the next attempt."""
        self._home = home
        self._row = row
        self._saving = saving

    def run(self) -> None:
        from gpuops.guard import guardkeys, tend

        try:
            ctx = _context(self._home, self._row.folder)
            try:
                tend.tend(ctx, self._row.id, saving=self._saving)
                guardkeys.refuse(self._home, self._row.provider, None)
                self._over(ctx)
            finally:
                ctx.ledger.close()
        except Exception as error:
            self.rounds += 1
            refusal = next((one for one in (error, error.__cause__) if isinstance(one, AuthFailed)), None)
            if refusal:
                guardkeys.refuse(self._home, self._row.provider, refusal)
            _log_failure(self._row.name)
            if self.rounds == TOLD_ROUNDS:
                self._tell(error)
            self.rests = True
            time.sleep(pause(self.rounds))

    def _tell(self, error: Exception) -> None:
        """Whoever types the next command should know; that it cannot be written down stops nobody."""
        name, why = self._row.name, getattr(error, "say", "") or f"{type(error).__name__}: {error}"
        give_up = f"`gpuops down {name} --force` gives up what does not answer"
        try:
            ledger = _context(self._home).ledger
            ledger.notice(f"{name} cannot be looked after: {why}; the guard goes on trying, {give_up}")
            ledger.close()
        except (GpuopsError, sqlite3.Error):
            _log_failure(name)

    def _over(self, ctx: Context) -> None:
        if self.rounds >= TOLD_ROUNDS:
            ctx.ledger.notice(f"{self._row.name} is looked after again")
        self.rounds = 0


class _SeeingOff(threading.Thread):
    """What is left of one cluster that costs nothing any more. It is not tried for ever: the next guard tries anew."""

    def __init__(self, home: Path, row: ClusterRow) -> None:
        super().__init__(daemon=True, name=f"see off {row.name}")
        self._home = home
        self._row = row

    def run(self) -> None:
        from gpuops.clusters import teardown
        from gpuops.guard import guardkeys

        ctx = _context(self._home, self._row.folder)
        try:
            teardown.see_off_patiently(ctx, self._row)
        except Exception as error:
            if isinstance(error, AuthFailed):
                guardkeys.refuse(self._home, self._row.provider, error)
            _log_failure(self._row.name)
        finally:
            ctx.ledger.close()


def pause(rounds: int) -> float:
    """How long to wait after so many failures in a row, in seconds."""
    return min(RETRY_S * 2.0 ** min(rounds - 1, 30), RETRY_SLOW_S)


def _log_failure(what: str = "the ledger") -> None:
    """A line for what a user could act on, a traceback for what is a bug."""
    error = sys.exception()
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if isinstance(error, GpuopsError):
        hint = f" ({error.hint})" if isinstance(error, AuthFailed) and error.hint else ""
        print(f"{at} {what}: {error.say}{hint}", file=sys.stderr)
    else:
        print(f"{at} {what}", file=sys.stderr)
        traceback.print_exc()
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
