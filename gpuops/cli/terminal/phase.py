"""One piece of long work as lines of text: what it does, what it waits for, how far it is. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuops.core.format import amount, cut, first_few, one_line, span

LINE_INTERVALS_S = ((60.0, 15.0), (600.0, 30.0), (float("inf"), 60.0))
"""(how long a phase has lasted, seconds between its plain lines): the longer it lasts, the rarer the lines."""
NODES_NAMED_MAX = 3
"""Nodes that are named where several wait for the same reason."""
REASON_CHARS_MAX = 100
"""Characters of the longest reason shown."""
REASON_CHARS_MIN = 8
"""Characters to which a narrow terminal cuts a reason, so that the elapsed time stays visible."""


@dataclass
class Phase:
    """One piece of work and its state."""

    text: str
    began: float
    """Monotonic seconds, like all times here."""
    limit_s: float | None = None
    """Seconds that it may take at most; None where there is no limit."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Reasons to wait, by the node that waits; the empty key is the whole phase."""
    label: str = ""
    """The node that bytes are transferred with."""
    done: int = 0
    """Bytes."""
    total: int = 0
    moved: float = 0.0
    """When the last byte was counted."""
    printed_at: float | None = None
    """When its last plain line was printed."""
    printed_reason: str = ""
    """The reason in that line."""
    repeats: int = 0
    """Plain lines printed after the first."""
    aside: bool = False
    """Whether the work is another process's, on which this one only reports."""

    @property
    def flows(self) -> bool:
        """Whether bytes are being transferred."""
        return self.done < self.total

    def reason(self) -> str:
        """`node1: no SSH banner yet; node0, node2: no address yet`."""
        groups: dict[str, list[str]] = {}
        for node, reason in self.reasons.items():
            groups.setdefault(reason, []).append(node)
        return "; ".join(
            f"{_format_nodes(nodes)}{one_line(reason, REASON_CHARS_MAX)}" for reason, nodes in groups.items()
        )

    def first_line(self) -> str:
        limit = f" (at most {span(self.limit_s)})" if self.limit_s else ""
        reason = self.reason()
        return f"{self.text}{limit}" + (f": {reason}" if reason else "")

    def line(self, now: float, room: int | None = None) -> str:
        """The phase now, its reason shortened to fit into `room` characters where possible."""
        if self.flows:
            return self.bytes_line(now)
        limit = self.limit_s if self.limit_s and now - self.began <= self.limit_s else None
        took = span(now - self.began) + (f" of at most {span(limit)}" if limit else "")
        reason = self.reason() or ("all is there, waiting for the other side" if self.total else "")
        if not reason:
            return f"{self.text}: {took}"
        excess = 0 if room is None else max(0, len(f"{self.text}: {reason}, {took}") - room)
        return f"{self.text}: {cut(reason, max(REASON_CHARS_MIN, len(reason) - excess))}, {took}"

    def bytes_line(self, now: float) -> str:
        """`node0: 400.0 kB of 1.0 MB, 200.0 kB/s, 3 s left`."""
        idle_s = now - self.moved
        rate = describe_rate(self.done, self.total, now - self.began)
        if self.flows and idle_s >= LINE_INTERVALS_S[0][1]:
            rate = f"nothing for {span(idle_s)}"
        return f"{self.label}: {amount(self.done)} of {amount(self.total)}, {rate}"


def _format_nodes(nodes: list[str]) -> str:
    """`node0, node1: `; empty where the whole phase waits."""
    named = [node for node in nodes if node]
    return f"{first_few(named, NODES_NAMED_MAX)}: " if named else ""


def describe_rate(done: int, total: int, seconds: float) -> str:
    """Rate and remaining time, from the bytes of the `seconds` so far."""
    rate = done / seconds if seconds > 0 else 0.0
    if rate <= 0:
        return "waiting"
    left = f", {span((total - done) / rate)} left" if done < total else f" in {span(seconds)}"
    return f"{amount(rate)}/s{left}"


def line_interval_s(took: float) -> float:
    """Seconds between plain lines of a phase that has lasted `took` seconds."""
    return next(interval_s for until_s, interval_s in LINE_INTERVALS_S if took < until_s)
