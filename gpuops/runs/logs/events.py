"""When a run's nodes noted an event, by the journals that are home (`events.jsonl`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuops.ledger.store import RunRow
from gpuops.runs.launch_spec import request_of
from gpuops.sync.run_folder import RunHome

if TYPE_CHECKING:
    from gpuops.transport.program_schemas import JournalEvent


def first_step_time(row: RunRow, until: Callable[[], bool] = lambda: False) -> float | None:
    """When a run did its first new step, where its program reports steps (UTC seconds, this computer's clock)."""
    return first_event_time(row, lambda event: event.event == "stepped", until)


def first_event_time(
    row: RunRow, matches: Callable[[JournalEvent], bool], until: Callable[[], bool] = lambda: False
) -> float | None:
    """When any node of a run first noted such an event, by the events that are home (UTC seconds, our clock). No more
    of them are read once `until()` holds."""
    from gpuops.transport import validation

    skews = row.facts.skews
    times = []
    for index in range(request_of(row).nodes):
        for line in RunHome(row.home).lines(index, "events.jsonl"):
            if until():
                break
            event = validation.parse_event(line)
            if event and matches(event):
                times.append(event.at + (skews[index] if index < len(skews) else 0.0))
    return min(times, default=None)
