"""Until when a node may live: pure arithmetic on two clocks.

A client sends seconds from now, since its clock may differ from ours. A hard end is kept as a wall
time and as a time of the machine's monotonic clock; the earlier wins, so that neither a clock set
back nor a suspended machine lengthens a lease. After a reboot only the wall time means anything.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Mapping, NamedTuple

from gpuops.agent.node import Node, log, read_json, write_json

BOOT_MARGIN_S = 120.0
"""How much later than the lease the machine's first watchdog ends it, in seconds: by then the node has ended itself."""


class Now(NamedTuple):
    """One look at the clocks: UTC seconds, seconds since some past instant of this boot, which boot."""

    wall: float
    mono: float
    boot_id: str


class End(NamedTuple):
    """How many seconds are left until an end (negative: it has passed), and which end it is."""

    left_s: float
    why: str


def read_clocks() -> Now:
    return Now(time.time(), monotonic(), boot_id())


def monotonic() -> float:
    """Seconds that go on while the machine sleeps, where the system can count them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def first(now: Now, boot_in: float | None, ends_in: float | None, idle_s: float | None) -> dict[str, Any]:
    """The lease that a node starts with; `boot_in` seconds from now it ends unless a client has sent another."""
    lease = renewed(now, ends_in, idle_s)
    lease["boot_wall"] = None if boot_in is None else now.wall + boot_in
    return lease


def renewed(now: Now, ends_in: float | None, idle_s: float | None) -> dict[str, Any]:
    """The lease that a client's `lease` call makes; None: no such end."""
    return {
        "hard_wall": None if ends_in is None else now.wall + ends_in,
        "hard_mono": None if ends_in is None else now.mono + ends_in,
        "boot_id": now.boot_id,
        "idle_s": idle_s,
        "boot_wall": None,
    }


def next_end(
    lease: Mapping[str, Any], now: Now, quiet_s: float, live: bool, hold_s: float | None = None, over: str = ""
) -> End | None:
    """The end that comes first. `quiet_s`: seconds since the last activity; `live`: a run is on; `hold_s`: for how
    long results that nobody has fetched are kept, None where there are none. That takes the place of the idle end:
    where there is no such end, there is none for them either. `over`: why there is nothing to live for any more."""
    ends = []
    hard_s = hard_left(lease, now)
    if hard_s is not None:
        ends.append(End(hard_s, "its lease ended"))
    if lease.get("boot_wall") is not None:
        ends.append(End(lease["boot_wall"] - now.wall, "nobody took it over in time after it started"))
    limit_s = unused_limit(lease, live, hold_s)
    if limit_s is not None:
        what = "nothing was run on it" if hold_s is None else "nobody fetched the results of its run"
        ends.append(End(limit_s - quiet_s, f"{what} for {spoken(limit_s)}"))
    if over and not live:
        ends.append(End(0.0, over))
    return min(ends, default=None)


def hard_left(lease: Mapping[str, Any], now: Now) -> float | None:
    """Seconds until the hard end, by the clock that says less; None where there is no such end."""
    left = []
    if lease.get("hard_wall") is not None:
        left.append(lease["hard_wall"] - now.wall)
    if lease.get("hard_mono") is not None and lease.get("boot_id") == now.boot_id:
        left.append(lease["hard_mono"] - now.mono)
    return min(left, default=None)


def unused_limit(lease: Mapping[str, Any], live: bool, hold_s: float | None) -> float | None:
    """After how many seconds without a sign of use a node ends now; None: it does not end for that."""
    if live or lease.get("idle_s") is None:
        return None
    idle_s: float = lease["idle_s"]
    return idle_s if hold_s is None else hold_s


def spoken(seconds: float) -> str:
    """`90 s`, `30 min`."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


class Quiet:
    """Seconds since `activity` was last touched, by the monotonic clock: a wall clock that jumps is not idleness."""

    def __init__(self) -> None:
        self._touched: float | None = None
        self._since = 0.0

    def seconds(self, touched: float, now: Now) -> float:
        """`touched`: the file's mtime (UTC seconds)."""
        if self._touched is None:
            self._since = now.mono - max(0.0, now.wall - touched)
        elif touched != self._touched:
            self._since = now.mono
        self._touched = touched
        return max(0.0, now.mono - self._since)


def is_live() -> bool:
    """Whether a run is on, for who works in the node's folder."""
    return os.path.exists("live.json")


def touched(node: Node) -> float:
    """When the node was last used (UTC seconds; 0: never)."""
    try:
        return os.stat(node.path("activity")).st_mtime
    except OSError:
        return 0.0


def lease(node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: take over the node until `ends_in` seconds from now, or until it was idle for `idle_s`."""
    new = renewed(read_clocks(), args.get("ends_in"), args.get("idle_s"))
    node.touch()
    write_json(node.path("lease.json"), new)
    tell_boot_watch(node.settings().get("boot_watch"), new["hard_wall"])
    return {"lease": new}


def tell_boot_watch(folder: str | None, hard_wall: float | None) -> None:
    """Move the end that the machine's own first watchdog keeps, where it has one: behind ours, which is the better.

    Nothing fails where it cannot be told: it ends the machine at the end that it knows, which is the earlier.
    """
    if not folder:
        return
    path = os.path.join(folder, "end")
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
    try:
        with open(temporary, "w", encoding="ascii") as file:
            file.write("none\n" if hard_wall is None else f"{int(hard_wall + BOOT_MARGIN_S)}\n")
        os.replace(temporary, path)
    except OSError as error:
        log(f"the watchdog of {folder} was not told of the new lease: {error}")


def read(node: Node) -> dict[str, Any]:
    """The lease in force; without a file there is no end."""
    return read_json(node.path("lease.json")) or {}
