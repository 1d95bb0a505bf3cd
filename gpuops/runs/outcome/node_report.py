"""How a run ended on each of its nodes: a node's `result.json` (docs/protocol.md) as typed values.

`parse_report` reads the document once, where it arrives; `lost_report` stands in for a node that cannot give its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Self

from gpuops.agent.run_documents import Outcome
from gpuops.core.models import MachineEnd


class ReasonKind(StrEnum):
    """Why a run ended on a node. The values are those of the node protocol, and of `run.json`."""

    RANK = "rank"
    LAUNCHER = "launcher"
    COMMAND = "command"
    START = "start"
    STOP = "stop"
    GANG = "gang"
    """Another node's agent asked for it."""
    LEASE = "lease"
    PREEMPTED = "reclaim"
    """The provider announced that it takes a machine back."""
    UNJOINED = "unjoined"
    """No rank had joined the others, and the run stood idle."""
    END = "end"
    """The node was ended under the run."""
    AGENT = "agent"
    WATCHDOG = "watchdog"
    UNREACHABLE = "node"
    """Written here: no connection; the node may live, and hold results."""
    ENDED = "gone"
    """Written here: the provider says that the machine has ended."""
    NONSENSE = "nonsense"
    """Written here: the node answers, and its answers cannot be believed."""
    NEVER_STARTED = "no-run"
    """Written here: the node knows no such run."""
    OTHER = ""
    """A kind that this version does not know."""

    @classmethod
    def _missing_(cls, _value: object) -> ReasonKind:
        return cls.OTHER


@dataclass(frozen=True)
class Reason:
    """Why a run ended on a node, and what is known of that."""

    kind: ReasonKind = ReasonKind.OTHER
    say: str = ""
    node: int | None = None
    """The node that its provider takes back."""
    origin: int | None = None
    """The node from which this one knows it; None: at first hand."""
    at: float | None = None
    """When the machine goes (UTC seconds)."""
    by: str = ""
    """Who takes it back."""
    signal: int | None = None
    preempted: bool = False
    """The provider says that it took the machine back without a notice to the node."""


class Joined(Enum):
    """Whether a rank was seen connected to the rendezvous store. The values are those of the node protocol."""

    YES = True
    NO = False
    UNKNOWN = None
    """Its node could not tell."""

    @classmethod
    def _missing_(cls, _value: object) -> Joined:
        return cls.UNKNOWN


@dataclass(frozen=True)
class RankReport:
    """How one rank ended. Times are UTC seconds by its node's clock, until `NodeReport.shifted`."""

    rank: int
    node: int
    local: int
    code: int | None
    """Exit code, or None when a signal ended it or it never reported."""
    signal: int | None
    started: float | None
    ended: float | None
    joined: Joined
    oom: bool = False
    after_stop: bool = False
    """It ended after the node had begun to stop the run."""
    tail: str = ""
    """The last lines of its stderr."""
    traceback: str = ""
    """By torch's error.json, when the script uses `@record`."""
    out: str = ""
    """The last lines of its stdout, fewer of them."""


@dataclass(frozen=True)
class NodeReport:
    """How a run ended on one node. Times are UTC seconds by its node's clock, until `shifted`."""

    node: int
    outcome: Outcome
    reason: Reason
    started: float | None
    ended: float | None
    launcher_code: int | None
    ranks: Sequence[RankReport] = ()
    tail: str = ""
    """The last lines of the launcher's (or the command's) stderr."""
    out: str = ""
    """The last lines of its stdout, fewer of them."""
    disk_free: int | None = None
    """Bytes that were free where the run had been, when it had ended; None: not known."""
    progress: Mapping[str, float] = field(default_factory=dict)
    """What its program last said of how far it is: `step`, `epoch`, `saved`, …"""
    document: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The document that it was parsed from, for the ledger and `run.json`."""

    @property
    def kind(self) -> ReasonKind:
        return self.reason.kind

    def shifted(self, seconds: float | None) -> Self:
        """The same with `seconds` added to its times: by this computer's clock. None: without times, since the node's
        clock cannot be compared with others."""

        def by_our_clock(at: float | None) -> float | None:
            return None if at is None or seconds is None else at + seconds

        ranks = tuple(
            replace(rank, started=by_our_clock(rank.started), ended=by_our_clock(rank.ended)) for rank in self.ranks
        )
        return replace(self, started=by_our_clock(self.started), ended=by_our_clock(self.ended), ranks=ranks)


def parse_report(node: int, document: Mapping[str, Any]) -> NodeReport:
    """A node's result.json as a value."""
    launcher = document.get("launcher") or {}
    return NodeReport(
        node=node,
        outcome=Outcome(document["outcome"]),
        reason=_reason(document.get("reason") or {}, launcher.get("signal")),
        started=document.get("started"),
        ended=document.get("ended"),
        launcher_code=launcher.get("code"),
        ranks=tuple(_rank_report(node, rank) for rank in document.get("ranks") or ()),
        tail=document.get("tail") or "",
        out=document.get("out") or "",
        disk_free=document.get("disk_free"),
        progress=dict(document.get("progress") or {}),
        document=document,
    )


def _reason(document: Mapping[str, Any], launcher_signal: int | None) -> Reason:
    return Reason(
        kind=ReasonKind(document.get("kind", "")),
        say=document.get("say") or "",
        node=document.get("node"),
        origin=document.get("from"),
        at=document.get("at"),
        by=document.get("by") or "",
        signal=document.get("signal", launcher_signal),
        preempted=bool(document.get("reclaimed")),
    )


def _rank_report(node: int, document: Mapping[str, Any]) -> RankReport:
    return RankReport(
        rank=document["rank"],
        node=node,
        local=document.get("local", 0),
        code=document.get("code"),
        signal=document.get("signal"),
        started=document.get("started"),
        ended=document.get("ended"),
        joined=Joined(document.get("joined")),
        oom=bool(document.get("oom")),
        after_stop=bool(document.get("after_stop")),
        tail=document.get("tail") or "",
        traceback=_recorded_traceback(document.get("error")),
        out=document.get("out") or "",
    )


def _recorded_traceback(error: object) -> str:
    """The traceback, or what else was said, of torch's error.json."""
    match error:
        case {"message": {"extraInfo": {"py_callstack": str(trace)}}} if trace:
            return trace.rstrip()
        case {"message": {"message": str(words)}} | {"message": str(words)}:
            return words.rstrip()
    return ""


def lost_report(node: int, say: str, kind: ReasonKind, end: MachineEnd | None = None) -> NodeReport:
    """The report of a node that cannot give its own. `end`: what its provider says of its machine's end; its
    sentence replaces `say`.
    """
    end = end or MachineEnd()
    preempted = {"reclaimed": True} if end.preempted else {}
    by = {"by": end.by} if end.by else {}
    document = {
        "node": node,
        "outcome": Outcome.LOST.value,
        "reason": {"kind": kind.value, "say": end.say or say, **preempted, **by},
        "started": None,
        "ended": None,
        "launcher": {"code": None, "signal": None},
        "ranks": [],
        "tail": "",
        "left": None,
    }
    return parse_report(node, document)
