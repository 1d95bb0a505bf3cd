"""How a run is stopped on one node: which steps, when, and which of several requests counts.

A stop takes up to three steps: ask (stop file, SIGUSR1), SIGTERM, SIGKILL. The first request is the reason of the
run's end. Later ones can only shorten a stop.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Iterable, NamedTuple

from gpuops.agent.run_documents import Outcome, Reason, StopMode

KILL_DELAY_S = 2.0
"""Time between SIGTERM and SIGKILL in a stop `now`."""


class StopAction(str, Enum):
    """Its values are names of events in events.jsonl."""

    ASK = "ask"
    TERM = "term"
    KILL = "kill"


class Step(NamedTuple):
    after_s: float
    """Counted from the start of the stop."""
    action: StopAction


class StopRequest(NamedTuple):
    reason: Reason
    mode: StopMode = StopMode.GRACEFUL
    outcome: Outcome = Outcome.STOPPED
    """LOST for a stop that no user asked for, when the agent or its watchdog fails."""
    overrides: bool = False
    """Replaces a graceful stop that has begun: a person's `now` does, another node's failure does not."""
    delay_s: float = 0.0
    within_s: float | None = None
    """In how many seconds the last step is taken at the latest: the machine is preempted."""


def stop_steps(mode: StopMode, grace_s: float, within_s: float | None = None) -> list[Step]:
    """The steps of a stop, the last no later than `within_s` where that is possible."""
    if mode == StopMode.NOW:
        return [Step(0.0, StopAction.TERM), Step(KILL_DELAY_S, StopAction.KILL)]
    steps = [Step(0.0, StopAction.ASK), Step(grace_s, StopAction.TERM), Step(2 * grace_s, StopAction.KILL)]
    return steps if within_s is None else shorten_steps(steps, within_s)


def shorten_steps(steps: Iterable[Step], within_s: float) -> list[Step]:
    """The same steps, the last after `within_s` at most. The time after SIGTERM is shortened first, to KILL_DELAY_S."""
    latest = {
        StopAction.ASK: within_s,
        StopAction.TERM: max(0.0, within_s - KILL_DELAY_S),
        StopAction.KILL: max(KILL_DELAY_S, within_s),
    }
    return [Step(min(step.after_s, latest[step.action]), step.action) for step in steps]


class StopPlan:
    """The stop of one run, requested from several threads. Each `now` is in monotonic seconds."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._steps: list[Step] = []
        self._started_at = 0.0
        self._is_immediate = False
        self._is_closed = False
        self.first: StopRequest | None = None
        """The request that is the reason of the run's end."""

    def add(self, request: StopRequest, now: float) -> bool:
        """Start a stop, or shorten the one that has begun. Returns whether the steps start now."""
        with self._lock:
            if self._is_closed:
                return False
            if self.first is None:
                self.first = request
            elif request.within_s is not None:
                self._steps = shorten_steps(self._steps, now - self._started_at + request.within_s)
                return False
            elif not request.overrides or self._is_immediate:
                return False
            self._is_immediate = request.mode == StopMode.NOW and not request.delay_s
            self._steps = stop_steps(request.mode, self._grace_s, request.within_s)
            self._started_at = now + request.delay_s
            return True

    def end_after(self, delay_s: float, now: float) -> None:
        """End what is left of a failed run in `delay_s`, unless a stop has begun."""
        with self._lock:
            if not self._steps:
                self._steps, self._started_at = stop_steps(StopMode.NOW, 0.0), now + delay_s

    def take_due(self, now: float) -> list[StopAction]:
        """The actions that are due, each once."""
        with self._lock:
            due = [step.action for step in self._steps if now >= self._started_at + step.after_s]
            self._steps = self._steps[len(due) :]
        return due

    def close(self) -> None:
        """The run is ending: accept no more requests."""
        with self._lock:
            self._is_closed = True
