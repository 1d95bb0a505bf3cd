"""The lease: until when a node may live, by two clocks, and the verb with which a client renews it.

A client sends seconds from now, since its clock may differ from ours. An end is stored as a wall time and as a time of
the machine's monotonic clock, and the earlier wins. Where they differ by more than `CLOCK_JUMP_S` in one boot, somebody
has set the wall clock, forwards or back, and the monotonic one alone counts. After a reboot only the wall time counts.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from gpuops.agent.machine_resources import boot_id
from gpuops.agent.node import Emit, Node, log, modified_at, read_json, remove_file, write_json, write_text

BOOT_MARGIN_S = 120.0
"""How much later than the lease the watchdog that came with the machine ends it: by then the node has ended itself."""
CLOCK_JUMP_S = 60.0
"""What the two clocks may differ by in one boot: the wall clock is corrected by less, in small steps."""
SPOKEN_MINUTES_FROM_S = 120.0
"""Durations from here on are shown in minutes."""


class ClockReading(NamedTuple):
    """A reading of the clocks: UTC seconds, seconds since some past instant of this boot, the boot's id."""

    wall: float
    mono: float
    boot_id: str


class Lease(NamedTuple):
    """The document `lease.json`. None stands for no such end."""

    hard_wall: float | None = None
    """The hard end, in UTC seconds and, in `hard_mono`, in seconds of this boot's monotonic clock."""
    hard_mono: float | None = None
    boot_id: str = ""
    idle_s: float | None = None
    """Seconds without a sign of use after which the node ends."""
    boot_wall: float | None = None
    """When a node ends that no client has taken over since it started: in UTC seconds and, in `boot_mono`, in seconds
    of this boot's monotonic clock."""
    boot_mono: float | None = None


class End(NamedTuple):
    """Seconds left until an end (negative: it has passed), and why it ends, in words."""

    left_s: float
    why: str


def read_clocks() -> ClockReading:
    return ClockReading(time.time(), monotonic(), boot_id())


def monotonic() -> float:
    """Seconds that count on while the machine sleeps, where the system supports that."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


def first_lease(now: ClockReading, boot_in: float | None, ends_in: float | None, idle_s: float | None) -> Lease:
    """The lease that a node starts with; it ends in `boot_in` seconds unless a client has renewed it."""
    lease = renewed_lease(now, ends_in, idle_s)
    return lease if boot_in is None else lease._replace(boot_wall=now.wall + boot_in, boot_mono=now.mono + boot_in)


def renewed_lease(now: ClockReading, ends_in: float | None, idle_s: float | None) -> Lease:
    """The lease that a client's `lease` call makes; None stands for no such end."""
    if ends_in is None:
        return Lease(boot_id=now.boot_id, idle_s=idle_s)
    return Lease(now.wall + ends_in, now.mono + ends_in, now.boot_id, idle_s)


def next_end(
    lease: Lease,
    now: ClockReading,
    quiet_s: float,
    has_live_run: bool,
    hold_s: float | None = None,
    early_end_reason: str = "",
) -> End | None:
    """The end that comes first; None: there is none.

    `quiet_s`: seconds since the last sign of use; `hold_s`: how long results that were not downloaded are held, None
    where there are none. It replaces the idle time; without an idle end results have no end either.
    `early_end_reason`: why the node may end early, in words; empty where it may not.
    """
    ends = []
    hard_s = hard_end_s(lease, now)
    if hard_s is not None:
        ends.append(End(hard_s, "its lease ended"))
    boot_s = seconds_left(lease.boot_wall, lease.boot_mono, lease.boot_id, now)
    if boot_s is not None:
        ends.append(End(boot_s, "no client took it over in time after it started"))
    limit_s = idle_limit_s(lease, has_live_run, hold_s)
    if limit_s is not None:
        what = "nothing was run on it" if hold_s is None else "no client downloaded the results of its run"
        ends.append(End(limit_s - quiet_s, f"{what} for {format_duration(limit_s)}"))
    if early_end_reason and not has_live_run:
        ends.append(End(0.0, early_end_reason))
    return min(ends, default=None)


def hard_end_s(lease: Lease, now: ClockReading) -> float | None:
    """Seconds until the hard end; None without one."""
    return seconds_left(lease.hard_wall, lease.hard_mono, lease.boot_id, now)


def seconds_left(wall: float | None, mono: float | None, boot_id: str, now: ClockReading) -> float | None:
    """Seconds until an end that two clocks tell, the monotonic one in this boot only: the smaller value, or the
    monotonic one where the wall clock was set. None without an end. Where boots have no id (outside Linux), the
    smaller value always: the machine may have started anew, and its monotonic clock may stand while it sleeps."""
    if wall is None:
        return None
    by_wall = wall - now.wall
    if mono is None or boot_id != now.boot_id:
        return by_wall
    by_mono = mono - now.mono
    return by_mono if boot_id and abs(by_wall - by_mono) > CLOCK_JUMP_S else min(by_wall, by_mono)


def idle_limit_s(lease: Lease, has_live_run: bool, hold_s: float | None) -> float | None:
    """After how many seconds without a sign of use the node ends; None: it does not end for that."""
    if has_live_run or lease.idle_s is None:
        return None
    return lease.idle_s if hold_s is None else hold_s


def format_duration(seconds: float) -> str:
    """`90 s`, `30 min`."""
    return f"{seconds / 60:.0f} min" if seconds >= SPOKEN_MINUTES_FROM_S else f"{seconds:.0f} s"


class IdleTimer:
    """Seconds since `activity` was last touched, by the monotonic clock: a jump of the wall clock does not count."""

    def __init__(self) -> None:
        self._touched: float | None = None
        self._since = 0.0

    def seconds(self, touched: float, now: ClockReading) -> float:
        """`touched`: the file's mtime (UTC seconds)."""
        if self._touched is None:
            self._since = now.mono - max(0.0, now.wall - touched)
        elif touched != self._touched:
            self._since = now.mono
        self._touched = touched
        return max(0.0, now.mono - self._since)


def is_run_live() -> bool:
    """Whether a run is on, for a process whose working directory is the node's folder."""
    return os.path.exists("live.json")


def note_run_end(node: Node) -> None:
    """No run is on any more: the idle end counts from now on."""
    node.touch()  # before: the last sign of use may be old
    try:
        remove_file(node.path("live.json"))
    except OSError as error:
        log(f"this node has no idle end, since live.json stays: {error}")


def last_used_at(node: Node) -> float:
    """When the node was last used (UTC seconds; 0: never)."""
    return modified_at(node.path("activity"))


def lease(node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: the node lives for `ends_in` more seconds, or until it was idle for `idle_s`; null: no such end."""
    new = renewed_lease(read_clocks(), args.get("ends_in"), args.get("idle_s"))
    node.touch()
    store_lease(node, new)
    move_boot_end(node.settings().boot_watch, new.hard_wall)
    return {"lease": new._asdict()}


def move_boot_end(folder: str | None, hard_wall: float | None) -> None:
    """Write the end for the watchdog that came with the machine, in `folder`, if there is one: BOOT_MARGIN_S later.

    A failure is only logged: that watchdog then ends the machine at the end it knows, which is earlier.
    """
    if not folder:
        return
    try:
        end = "none\n" if hard_wall is None else f"{int(hard_wall + BOOT_MARGIN_S)}\n"
        write_text(os.path.join(folder, "end"), end, 0o644)
    except OSError as error:
        log(f"the new lease cannot be written for the watchdog of {folder}: {error}")


def store_lease(node: Node, lease: Lease) -> None:
    write_json(node.path("lease.json"), lease._asdict())


def read_document(node: Node) -> dict[str, Any]:
    """lease.json; empty where there is none."""
    return read_json(node.path("lease.json")) or {}


def read_lease(node: Node) -> Lease:
    """The lease in force; without a file there is no end."""
    return parse_lease(read_document(node))


def parse_lease(document: dict[str, Any]) -> Lease:
    return Lease(**{name: document[name] for name in Lease._fields if name in document})
