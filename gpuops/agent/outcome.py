"""How a run ended on this node: pure decisions from what was seen."""

from __future__ import annotations

import signal
from typing import Any, Iterable, Mapping, NamedTuple

HURRY_S = 2.0
"""What a stop `now` gives between SIGTERM and SIGKILL, in seconds."""


class Stop(NamedTuple):
    """Why this node stops its run. The first one counts."""

    outcome: str
    """`stopped`, or `lost` where nobody asked for it."""
    reason: Mapping[str, Any]


class Step(NamedTuple):
    after_s: float
    do: str
    """`ask` (stop file, SIGUSR1), `term` or `kill`."""


def ladder(how: str, grace_s: float, within_s: float | None = None) -> list[Step]:
    """The steps of a stop, `graceful` or `now`; `within_s`: the last of them comes no later, where that is possible."""
    if how == "graceful":
        return hastened([Step(0.0, "ask"), Step(grace_s, "term"), Step(2 * grace_s, "kill")], within_s)
    return [Step(0.0, "term"), Step(HURRY_S, "kill")]


def hastened(steps: Iterable[Step], within_s: float | None) -> list[Step]:
    """The same steps, the last `within_s` from the first one's zero; what is given up first is the time after SIGTERM,
    down to `HURRY_S`."""
    if within_s is None:
        return list(steps)
    latest = {"ask": within_s, "term": max(0.0, within_s - HURRY_S), "kill": max(HURRY_S, within_s)}
    return [Step(min(step.after_s, latest[step.do]), step.do) for step in steps]


def first_failure(records: Iterable[Mapping[str, Any]], before: float) -> Mapping[str, Any] | None:
    """The rank that failed first, of those that ended before we signalled any (UTC seconds; infinite: we did not)."""
    failed = [record for record in records if is_failure(record) and record["ended"] < before]
    return min(failed, key=lambda record: record["ended"], default=None)


def is_failure(record: Mapping[str, Any]) -> bool:
    return record.get("ended") is not None and (record.get("code") != 0 or record.get("signal") is not None)


def decide(
    kind: str, returncode: int | None, records: Iterable[Mapping[str, Any]], stop: Stop | None, acted: float
) -> tuple[str, dict[str, Any]]:
    """Outcome and reason. `returncode` is the launcher's, as Popen gives it; None: it was not seen to end.

    `acted`: when the first signal of a stop was sent. A rank that failed before is the reason, whoever asked for what.
    """
    failed = first_failure(records, acted)
    if failed is not None:
        return "failed", {"kind": "rank", "rank": failed["rank"], "say": f"rank {failed['rank']} {ended(failed)}"}
    if stop is not None:
        return stop.outcome, dict(stop.reason)
    if returncode == 0:
        return "done", {"kind": "command" if kind == "command" else "launcher", "say": "it ended by itself"}
    code, sign = split(returncode)
    if kind == "command":
        return "failed", {"kind": "command", "say": f"the command {ended({'code': code, 'signal': sign})}"}
    return "failed", {"kind": "launcher", "say": f"torchrun {ended({'code': code, 'signal': sign})}"}


def split(returncode: int | None) -> tuple[int | None, int | None]:
    """Popen's return code as (exit code, signal)."""
    if returncode is None:
        return None, None
    return (None, -returncode) if returncode < 0 else (returncode, None)


def ended(record: Mapping[str, Any]) -> str:
    """`failed with exit code 3`, `was ended by SIGKILL`."""
    sign = record.get("signal")
    if sign is not None:
        return f"was ended by {signal_name(sign)}"
    return f"failed with exit code {record.get('code')}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
