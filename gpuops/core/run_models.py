"""A run as plain data: what was asked for, what a launch knows about each node, and the outcome.

Everything here is frozen and JSON-able. Durations are seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from gpuops.core.sink import Sink, parse_document


@dataclass(frozen=True)
class RunRequest:
    """What `train` or `run` was asked to launch, before any node is known."""

    kind: Literal["torchrun", "command"]
    mode: Literal["single", "multigpu", "multinode", "run"]
    nodes: int
    """0 as typed without a number: all that the cluster has."""
    gpus: int | None
    """Ranks per node; None: one per GPU, or the default for a machine without."""
    script: str | None = None
    """Path relative to the project, for torchrun."""
    module: str | None = None
    workload: str | None = None
    argv: Sequence[str] = ()
    """Arguments of the script, or the whole command."""
    all_nodes: bool = False
    """`run --all-nodes`: the command runs on every node, not on node0 alone."""
    data: str | None = None
    """A path on this computer, relative where it lies in the project, or an address (`core.data_address`)."""
    outs: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()
    """Names only; the values are read when the run starts and are never stored."""
    prelude: Sequence[str] = ()
    python: str | None = None
    setup: str | None = None
    """A shell command on every node; None: the provider's default, empty: none."""
    resume: str | None = None
    grace_s: float = 10.0
    """How long a graceful stop waits before SIGTERM, and again before SIGKILL."""
    join_timeout_s: float | None = 1800.0
    """How long a run in which no rank joins may print nothing and stand idle before it ends (`--join-timeout`); None:
    for ever."""
    hold_s: float | None = None
    """How long its nodes wait after its end for somebody to fetch what it made (`--grace`), instead of their idle end;
    None: as long as they may stand idle."""
    sink: Sink | None = None
    """Where else its results are kept."""
    nodes_at: Sequence[int] = ()
    """Which of the cluster's nodes it uses; empty: the first ones. The run itself numbers them from 0."""
    array_index: int | None = None
    """Which run of an array it is (`--array`); None: of none."""

    def document(self) -> dict[str, Any]:
        """The JSON form, as the ledger keeps it."""
        return {**dataclasses.asdict(self), "sink": self.sink.document() if self.sink else None}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> RunRequest:
        """The request of a JSON form. Raises TypeError, ValueError for what is none."""
        return cls(**{**document, "sink": parse_document(document.get("sink"))})


class VerdictOutcome(StrEnum):
    """How a run ended on all its nodes together."""

    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    PREEMPTED = "reclaimed"
    """A provider took a machine of it back."""
    LOST = "lost"
    UNFORMED = "unformed"
    """All ranks ended well, and did not train as one world."""
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run: its last sentence and its exit code."""

    outcome: VerdictOutcome
    exit_code: int
    say: str
    """One sentence: `rank 3 on node1 failed with exit code 3`."""
    hint: str = ""
    rank: int | None = None
    node: int | None = None
    tail: str = ""
    """The first failing rank's last words, printed before `say`."""

    def document(self) -> dict[str, Any]:
        """The JSON form, as the ledger and `run.json` keep it."""
        return dataclasses.asdict(self)

    @classmethod
    def parse(cls, document: object) -> Verdict:
        """The verdict of a JSON form. Raises TypeError, KeyError, ValueError for what is none."""
        known = {name.name for name in dataclasses.fields(cls)}
        if not isinstance(document, Mapping) or not isinstance(document["say"], str):
            raise TypeError(document)
        given = {name: value for name, value in document.items() if name in known}
        return cls(**{**given, "outcome": VerdictOutcome(document["outcome"])})


@dataclass(frozen=True)
class NodeFacts:
    """What a launch has to know about one node."""

    index: int
    python: str
    """The interpreter that runs the user's script."""
    ranks: int
    cores: int
    """Cores of the machine that this node may use."""
    cores_share: float = 1.0
    """Fraction of them that is this node's; several nodes may share one machine."""
    gpus: Sequence[int | str] | None = None
    """Indices of this node's GPUs; None: whatever there is, empty: none."""
    interface: str = ""
    """The network interface that routes to the other nodes."""
    address: str = ""
    """Where the other nodes reach it; node0's is the head's."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What its provider says that processes there need; the user's own variables come after it."""
    data: str | None = None
    """Where it has what `--data` names; None: where the request says."""
    within: Sequence[str] = ()
    """What starts a program in the image that runs are started in, before the program's own words."""
