"""By which time the guard judges a lease: no clock of this computer decides alone.

A lease's end is a wall time of the computer that gave it. What the wall clock and the time since the boot said when the
guard first saw that end is kept in a file beside its heartbeat, for its child and for the next guard of this boot. From
then on both must say that it has come; where they differ by more than `CLOCK_JUMP_S`, the wall clock was set, and the
time since the boot counts, so that there is always an end. Two ends are in doubt, and before they are carried out, what
is to be ended is asked (`lease_check`): one that was given before this boot, or before anybody looked; and one that has
come by a wall clock that was set forwards, as in a virtual machine (WSL2) that stood still while its laptop slept.

Where boots have no id (outside Linux) the wall clock counts: the time since the boot may stand while a laptop sleeps.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuops.agent.lease_clock import CLOCK_JUMP_S, ClockReading
from gpuops.agent.machine_resources import boot_id
from gpuops.core.files import read_small, write_atomic
from gpuops.core.polling import Clock
from gpuops.guard.guard_heartbeat import FOLDER
from gpuops.ledger.rows import ClusterRow, ClusterState


@dataclass(frozen=True)
class FirstSight:
    """What the clocks said when an end was first seen."""

    end: float
    """The lease's, in UTC seconds."""
    clocks: ClockReading
    is_sure: bool
    """Whether the end was given in this boot, by the wall clock as it was then."""
    told_left_s: float | None = None
    """Seconds until the end then, as who is to be ended has said; None: by the wall clock."""

    def times(self, now: ClockReading) -> tuple[float, float]:
        """The time by the wall clock, and by the time since the boot: UTC seconds of when the end was seen."""
        seen = self.clocks.wall if self.told_left_s is None else self.end - self.told_left_s
        return seen + now.wall - self.clocks.wall, seen + now.mono - self.clocks.mono

    def is_in_doubt(self, now: ClockReading) -> bool:
        """Whether its end is carried out only where who is to be ended agrees."""
        by_wall, by_boot = self.times(now)
        return not self.is_sure or by_wall - by_boot > CLOCK_JUMP_S


def read_clocks(clock: Clock) -> ClockReading:
    return ClockReading(clock.now(), clock.since_boot(), boot_id())


# -- decided ---------------------------------------------------------------------------------------


def lease_time(first: FirstSight | None, now: ClockReading, *, can_ask: bool) -> float:
    """The time by which a lease is judged, in UTC seconds of when its end was first seen.

    `can_ask`: an end in doubt is not carried out before somebody else is asked, so that whichever clock is ahead
    counts. It does for what was given before this boot in any case: a computer that starts in 1970, and is set right
    later, must not wait for an end for decades.
    """
    if first is None:
        return now.wall
    by_wall, by_boot = first.times(now)
    if not first.is_sure or (can_ask and first.is_in_doubt(now)):
        return max(by_wall, by_boot)
    return by_boot if abs(by_wall - by_boot) > CLOCK_JUMP_S else min(by_wall, by_boot)


def see_end(known: FirstSight | None, end: float | None, now: ClockReading, *, is_new: bool) -> FirstSight | None:
    """The first sight of a lease's end: the one that is known, or this one. None without an end, or without a boot id.

    `known`: of this cluster, perhaps of another end, or of another boot; `is_new`: a command has just made the cluster.
    """
    if end is None or not now.boot_id:
        return None
    seen_in_this_boot = known is not None and known.clocks.boot_id == now.boot_id
    if known is not None and seen_in_this_boot and known.end == end:
        return known
    return FirstSight(end, now, is_sure=seen_in_this_boot or is_new)


def move_end(first: FirstSight, left_s: float, now: ClockReading) -> FirstSight:
    """The sight of an end that comes in so many seconds, as who is to be ended says."""
    return FirstSight(first.end, now, is_sure=True, told_left_s=left_s)


# -- kept ------------------------------------------------------------------------------------------


def look(home: Path, row: ClusterRow, now: ClockReading, known: FirstSight | None) -> FirstSight | None:
    """The first sight of a cluster's end, written down where it is new. `known`: what this guard saw last, in case that
    the file cannot be written."""
    written = read(home, row.id)
    first = see_end(written or known, row.end, now, is_new=row.state is ClusterState.CREATING)
    if first and first != written:
        write(home, row.id, first)
    return first


def recall(home: Path, row: ClusterRow, now: ClockReading) -> FirstSight | None:
    """The first sight of a cluster's end; None where the wall clock counts."""
    first = read(home, row.id)
    is_of_now = first is not None and first.end == row.end and first.clocks.boot_id == now.boot_id
    return first if is_of_now else None


def read(home: Path, cluster: int) -> FirstSight | None:
    """None where none was written that can be read."""
    try:
        document = json.loads(read_small(_path(home, cluster)))
        clocks = ClockReading(float(document["wall"]), float(document["since_boot"]), str(document["boot_id"]))
        told = document.get("told_left_s")
        is_sure = bool(document["is_sure"])
        return FirstSight(float(document["end"]), clocks, is_sure, None if told is None else float(told))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(home: Path, cluster: int, first: FirstSight) -> None:
    """A full disk keeps no guard from its work."""
    clocks = {"wall": first.clocks.wall, "since_boot": first.clocks.mono, "boot_id": first.clocks.boot_id}
    document = {"end": first.end, "is_sure": first.is_sure, "told_left_s": first.told_left_s, **clocks}
    with suppress(OSError):
        write_atomic(_path(home, cluster), json.dumps(document).encode())


def forget(home: Path, cluster: int) -> None:
    """The cluster needs no guard any more."""
    with suppress(OSError):
        _path(home, cluster).unlink(missing_ok=True)


def _path(home: Path, cluster: int) -> Path:
    return home / FOLDER / f"{cluster}.clocks.json"
