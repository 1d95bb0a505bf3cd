"""The JSON documents of a run, parsed: launch spec, records of ranks, why it ended, what its sink has stored.

A client sends the launch spec with verb `start`; the files in the run's folder hold the rest (docs/protocol.md names
every field). Fields that are absent or null have the defaults below, and unknown ones are ignored.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple, Sequence


class RunKind(str, Enum):
    TORCHRUN = "torchrun"
    COMMAND = "command"


class Outcome(str, Enum):
    """How a run ended on one node."""

    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    """Ended without a request, and not by itself: its node or its agent failed."""


class StopMode(str, Enum):
    GRACEFUL = "graceful"
    """The run gets time to save a snapshot."""
    NOW = "now"


class Endpoint(NamedTuple):
    address: str
    port: int


class SinkSpec(NamedTuple):
    """Where results are stored: a folder, or a bucket (`s3://…`); the other one is empty."""

    folder: str = ""
    id: str = ""
    """Distinguishes runs that ask for the same folder."""
    bucket: str = ""
    end: bool = False
    """The node ends once its results are stored."""


class MachineShare(NamedTuple):
    """How many nodes and ranks of a run are on one machine."""

    nodes: int
    ranks: int


class LaunchSpec(NamedTuple):
    """What one node starts for a run. `node`: the node's index among the run's `nodes`."""

    run: str
    node: int = 0
    attempt: int = 1
    cluster: str = ""
    nodes: int = 1
    tree: str = ""
    """The pushed tree that is the run's working directory."""
    kind: RunKind = RunKind.COMMAND
    argv: Sequence[str] = ()
    prelude: Sequence[str] = ()
    """Lines of shell that run before the user's command, in the same process."""
    within: Sequence[str] = ()
    """The words that start a program in an image on this machine, before the program's own."""
    env: Mapping[str, str] = MappingProxyType({})
    user_env: Mapping[str, str] = MappingProxyType({})
    path_first: Sequence[str] = ()
    scrub: Sequence[str] = ()
    """Variables to remove from the environment: names, and prefixes that end in `_`."""
    ranks: int = 0
    """How many ranks this node has; `world`: how many all nodes have; `rank_base`: the first one here."""
    rank_base: int = 0
    world: int = 0
    here: MachineShare | None = None
    master: Endpoint | None = None
    """The rendezvous store."""
    gang: Endpoint | None = None
    """Where node 0 listens for the other nodes' agents."""
    outs: Sequence[str] = ()
    """Patterns of the run's outputs."""
    grace_s: float = 10.0
    join_timeout_s: float | None = None
    """How long a run in which no rank joins may print nothing and stand idle before it ends; None: for ever."""
    data: str | None = None
    hold_s: float | None = None
    """How long results are held for a client to download them; None: they are not held."""
    sink: SinkSpec | None = None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> LaunchSpec:
        """Raises KeyError, TypeError or ValueError for a document of another shape."""
        values = _known(cls, document)
        parts = {"kind": RunKind, "here": _of(MachineShare), "master": _of(Endpoint), "gang": _of(Endpoint)}
        for name, parse in {**parts, "sink": _of(SinkSpec), "hold_s": float, "join_timeout_s": float}.items():
            if name in values:
                values[name] = parse(values[name])
        return cls(**values)

    @property
    def uses_bucket(self) -> bool:
        return self.sink is not None and bool(self.sink.bucket)


class SinkPhase(str, Enum):
    CLAIMED = "claimed"
    COPYING = "copying"
    SAFE = "safe"
    FAILED = "failed"


class SinkState(NamedTuple):
    """How far the results of a run are stored in its sink (`sink.json`)."""

    state: SinkPhase
    folder: str | None = None
    """The run's folder in the sink, or its place in the bucket."""
    at: float | None = None
    done: int | None = None
    """Bytes copied so far, of `total`."""
    total: int | None = None
    files: int | None = None
    bytes: int | None = None
    changed: Sequence[str] | None = None
    """Files that changed while they were sent."""
    why: str | None = None
    """Why storing them failed."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> SinkState:
        """Raises KeyError or ValueError without a known `state`."""
        return cls(**{**_known(cls, document), "state": SinkPhase(document["state"])})

    def document(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


class Reason(NamedTuple):
    """Why a run stops or has ended: in events, in messages between nodes, and in result.json."""

    kind: str = ""
    """`command`, `launcher`, `rank`, `start`, `agent`, `watchdog`, `stop`, `lease`, `gang`, `reclaim`, `rebalance`."""
    say: str = ""
    """In words, for a person."""
    by: str | None = None
    """The provider that takes the machine of `node` back `at` that time (UTC seconds; None: unknown)."""
    at: float | None = None
    node: int | None = None
    rank: int | None = None
    """The rank that failed."""
    sender: int | None = None
    """The node that told this one."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Reason:
        return cls(**_known(cls, {**document, "sender": document.get("from")}))

    def document(self) -> dict[str, Any]:
        optional = {"by": self.by, "at": self.at, "node": self.node, "rank": self.rank, "from": self.sender}
        known: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        if self.by is not None:
            known["at"] = self.at  # a provider's notice has it, null where the time is unknown
        return {"kind": self.kind, "say": self.say, **known}


class RankRecord(NamedTuple):
    """What the wrapper of a rank records in `ranks/<rank>.json`; the times are UTC seconds."""

    rank: int
    local: int = 0
    wrapper: int | None = None
    """Process numbers of the wrapper and, in `pid`, of the script."""
    pid: int | None = None
    code: int | None = None
    signal: int | None = None
    started: float | None = None
    ended: float | None = None
    """None while the rank lives."""
    oom: bool = False
    """It was killed for lack of memory."""
    error: Any = None
    """torch's error file, where the script wrote one."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> RankRecord:
        """Raises TypeError without `rank`."""
        return cls(**_known(cls, document))

    @property
    def has_failed(self) -> bool:
        return self.ended is not None and (self.code != 0 or self.signal is not None)


def _known(cls: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """The document's values, but null, for the fields of a NamedTuple."""
    return {name: document[name] for name in cls._fields if document.get(name) is not None}


def _of(cls: Any) -> Any:
    """The function that parses an inner document as this NamedTuple."""
    return lambda document: cls(**_known(cls, document))
