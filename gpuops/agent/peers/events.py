"""The events that the nodes of one run tell each other over the gang link, as typed values and as JSON."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Union

from gpuops.agent.run_documents import Outcome, Reason, StopMode


class RunEnded(NamedTuple):
    """The run has ended on a node, or the node is lost."""

    node: int
    outcome: Outcome
    reason: Reason

    def document(self) -> dict[str, Any]:
        return {"event": "ended", "node": self.node, "outcome": self.outcome, "reason": self.reason.document()}


class StopRequested(NamedTuple):
    """A node stops the run on all nodes. The last three fields are there where its machine is preempted."""

    node: int
    why: str
    how: StopMode
    reason: Reason | None = None
    within_s: float | None = None
    """In how many seconds the run must have stopped."""
    left_s: float | None = None
    """In how many seconds the machine ends."""

    def document(self) -> dict[str, Any]:
        document = {"event": "stop", "node": self.node, "why": self.why, "how": self.how}
        if self.reason is None:
            return document
        return {**document, "reason": self.reason.document(), "within_s": self.within_s, "left_s": self.left_s}


class SnapshotRequested(NamedTuple):
    """A node asks for a snapshot on all nodes; `at`: when it asked (UTC seconds)."""

    node: int
    at: float
    reason: Reason

    def document(self) -> dict[str, Any]:
        return {"event": "snapshot", "node": self.node, "at": self.at, "reason": self.reason.document()}


Event = Union[RunEnded, StopRequested, SnapshotRequested]


def parse_event(document: Mapping[str, Any]) -> Event | None:
    """The event in a message; None for one that this agent does not know.

    Raises KeyError, TypeError, ValueError or AttributeError for a document of another shape.
    """
    node, kind = document["node"], document["event"]
    if kind == "ended":
        return RunEnded(node, Outcome(document["outcome"]), Reason.parse(document["reason"]))
    if kind == "snapshot":
        return SnapshotRequested(node, document["at"], Reason.parse(document["reason"]))
    if kind == "stop":
        reason = Reason.parse(document["reason"]) if document.get("reason") else None
        limits = document.get("within_s"), document.get("left_s")
        return StopRequested(node, document["why"], StopMode(document["how"]), reason, *limits)
    return None
