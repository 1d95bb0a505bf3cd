"""One piece of work in words: what goes on, what it waits for, how far it is, and how long it may be silent."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuops.core.output import amount, calm, cut, span

BEATS = ((60.0, 15.0), (600.0, 30.0), (float("inf"), 60.0))
"""(how long it has lasted, how often it is said that it goes on), in seconds."""
NAMED = 3
"""So many nodes that wait for the same are named."""
REASON = 100
"""The longest reason shown, in characters."""
SHORTEST = 8
"""To so many it is cut where a terminal is narrow: how long it takes is always seen."""


@dataclass
class Phase:
    """What goes on, since when (`began`, a monotonic clock's seconds), and what it waits for."""

    text: str
    began: float
    limit_s: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    """By who waits; empty: all."""
    label: str = ""
    done: int = 0
    total: int = 0
    moved: float = 0.0
    """When the last byte was counted."""
    said_at: float | None = None
    said_why: str = ""
    beats: int = 0
    """How many lines said that it goes on."""
    aside: bool = False
    """It is no work of ours: somebody else's goes on."""

    @property
    def flows(self) -> bool:
        """Whether bytes are on their way."""
        return self.done < self.total

    def why(self) -> str:
        """`node1: no SSH banner yet; node0, node2: no address yet`."""
        groups: dict[str, list[str]] = {}
        for who, reason in self.reasons.items():
            groups.setdefault(reason, []).append(who)
        return "; ".join(f"{_names(who)}{_short(reason)}" for reason, who in groups.items())

    def opening(self) -> str:
        """The first line about it."""
        limit = f" (at most {span(self.limit_s)})" if self.limit_s else ""
        return "".join([self.text, limit, *(f": {why}" for why in [self.why()] if why)])

    def line(self, now: float, room: int | None = None) -> str:
        """How it stands; in `room` characters where a shorter reason is enough for that."""
        if self.flows:
            return self.bytes(now)
        limit = self.limit_s if self.limit_s and now - self.began <= self.limit_s else None
        took = span(now - self.began) + (f" of at most {span(limit)}" if limit else "")
        why = self.why() or ("all is there, waiting for the other side" if self.total else "")
        if not why:
            return f"{self.text}: {took}"
        over = 0 if room is None else len(f"{self.text}: {why}, {took}") - room
        return f"{self.text}: {cut(why, max(SHORTEST, len(why) - max(over, 0)))}, {took}"

    def bytes(self, now: float) -> str:
        """`node0: 400.0 kB of 1.0 MB, 200.0 kB/s, 3 s left`."""
        stuck = now - self.moved
        rate = pace(self.done, self.total, now - self.began)
        if self.flows and stuck >= BEATS[0][1]:
            rate = f"nothing for {span(stuck)}"
        return f"{self.label}: {amount(self.done)} of {amount(self.total)}, {rate}"


def _names(who: list[str]) -> str:
    named = [one for one in who if one]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f"{', '.join(named[:NAMED])}{more}: " if named else ""


def _short(text: str) -> str:
    one_line = " ".join(calm(text).split())
    return cut(one_line, REASON)


def pace(done: int, total: int, seconds: float) -> str:
    """Rate and time left, from what `seconds` have brought so far."""
    rate = done / seconds if seconds > 0 else 0.0
    if rate <= 0:
        return "waiting"
    left = f", {span((total - done) / rate)} left" if done < total else f" in {span(seconds)}"
    return f"{amount(rate)}/s{left}"


def beat_s(took: float) -> float:
    """How long what has lasted `took` seconds may be silent."""
    return next(every for until, every in BEATS if took < until)
