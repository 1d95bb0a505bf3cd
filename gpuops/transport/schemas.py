"""The shape of everything that a node may say (docs/protocol.md): one frozen Struct for each answer.

`VERB_SHAPES` names the shapes of each verb's answer and items; the `*Document` types are files of a run on a node. What
the agent's programs write: `gpuops.transport.program_schemas`. `gpuops.transport.validation` converts to them all, and
drops fields that no shape has.

A field without a default is one that every agent sends; one with a default came later, or may be missing. Numbers have
bounds, so that none overflows a clock, a file or a float. What a person's own program may have written (`progress`,
torch's `error`) is taken as it is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
from msgspec import Meta, Struct

from gpuops.transport import file_schemas, program_schemas, usage_schemas
from gpuops.transport.schema_types import (
    Address,
    Amount,
    Count,
    FiniteNumber,
    LongText,
    Name,
    Port,
    Sentence,
    SmallInteger,
    Timestamp,
    prepare_shapes,
)

# -- what a node is ---------------------------------------------------------------------------------


class Gpu(Struct, frozen=True):
    """An NVIDIA GPU, as `nvidia-smi` numbers and names it."""

    index: SmallInteger
    name: Name
    driver: Name
    compute_cap: Name = ""


class WatchdogLease(Struct, frozen=True):
    """The lease that a node's watchdog keeps, by the node's clock."""

    hard_wall: Timestamp | None = None
    idle_s: Amount | None = None
    boot_wall: Timestamp | None = None


class LocalDisk(Struct, frozen=True):
    """The disk of a rented machine that data and environments lie on."""

    path: Name
    free: Count


class NodeHello(Struct, frozen=True):
    """Verb `hello`: what a node says of itself."""

    protocol: SmallInteger
    cores: Annotated[int, Meta(ge=1, le=1 << 20)]
    gpus: Annotated[list[Gpu], Meta(max_length=4096)]
    folder: Name
    time: Timestamp | None = None
    """The node's clock. Agents whose `ping` has no time send it only here."""
    busy: Name | None = None
    """The run that is going on there."""
    scratch: LocalDisk | None = None
    lease: WatchdogLease | None = None


class OtherHello(Struct, frozen=True):
    """The `hello` of an agent that speaks another protocol: none of its other fields can be trusted."""

    protocol: SmallInteger


class Pong(Struct, frozen=True):
    """Verb `ping`: the node's clock."""

    time: Timestamp | None = None


class Acknowledgement(Struct, frozen=True):
    """The answer of a verb that only succeeds or is refused."""


# -- the network between nodes ----------------------------------------------------------------------


class Route(Struct, frozen=True):
    """Verb `route`: the interface and the source address by which a node reaches an address."""

    interface: Name
    address: Address


class FreePort(Struct, frozen=True):
    """Verb `port`: a port that nothing listens on."""

    port: Port


class InterfaceAddress(Struct, frozen=True):
    """One address of one network interface."""

    interface: Name
    address: Address
    kind: Name = "direct"
    speed: Count | None = None
    """In Mbit/s, where the interface says."""


class MachineAddresses(Struct, frozen=True):
    """Verb `addresses`. `machine` is the same for all nodes on one machine."""

    machine: Name
    addresses: Annotated[list[InterfaceAddress], Meta(max_length=4096)]


class ListeningPorts(Struct, frozen=True):
    """Verb `listen`: the ports on which a node waits for the probes of the others."""

    fresh: list[Port]
    ephemeral: list[Port]


class ConnectionAttempt(Struct, frozen=True):
    """One try to reach a port of another node; `ms` and `mb_s` are the latency and the throughput in MB/s."""

    node: SmallInteger
    address: Name
    port: Port
    state: Name
    why: Name
    source: Name
    ms: Amount | None
    mb_s: Amount | None


class ReachReport(Struct, frozen=True):
    """Verb `reach`."""

    tried: list[ConnectionAttempt]


# -- what a run needs -------------------------------------------------------------------------------


class NodePython(Struct, frozen=True):
    """Verb `python`: the interpreter that a run uses on a node, and `why` this one."""

    python: Name
    version: Name
    torch: Name | None
    why: Name
    cuda: Name | None = None


class ProgressLine(Struct, frozen=True):
    """An item of verb `python`: what making an environment is at."""

    say: Sentence


class SetupOutput(Struct, frozen=True):
    """An item of verb `setup`: bytes that the set-up command wrote."""

    data: bytes = msgspec.field(name="b64")


class SetupResult(Struct, frozen=True):
    """Verb `setup`."""

    code: SmallInteger | None
    """The command's exit code; a negative signal number where a signal ended it."""
    skipped: bool
    """The command has succeeded before, and nothing that it reads has changed."""


# -- a run's logs and results -----------------------------------------------------------------------


class LauncherDocument(TypedDict):
    """How torchrun, or the command of a run, ended."""

    code: NotRequired[SmallInteger | None]
    signal: NotRequired[SmallInteger | None]


ReasonDocument = TypedDict(
    "ReasonDocument",
    {
        "kind": Name,
        "say": NotRequired[Sentence],
        "node": NotRequired[SmallInteger],
        "from": NotRequired[SmallInteger],
        "at": NotRequired[Timestamp | None],
        "by": NotRequired[Name],
        "rank": NotRequired[SmallInteger],
        "signal": NotRequired[SmallInteger | None],
        "reclaimed": NotRequired[bool],
    },
)


class RankDocument(TypedDict):
    """How a rank ended."""

    rank: SmallInteger
    local: NotRequired[SmallInteger]
    code: NotRequired[SmallInteger | None]
    signal: NotRequired[SmallInteger | None]
    started: NotRequired[Timestamp | None]
    ended: NotRequired[Timestamp | None]
    joined: NotRequired[bool | None]
    oom: NotRequired[bool]
    after_stop: NotRequired[bool]
    error: NotRequired[Any]
    tail: NotRequired[LongText]
    out: NotRequired[LongText]


class ResultDocument(TypedDict):
    """result.json: how a run ended on a node.

    A document and not a Struct, as the three above, since the ledger and run.json keep it with exactly the fields that
    the node sent. `gpuops.runs.outcome.node_report.parse_report` makes a typed value of it.
    """

    outcome: Literal["done", "failed", "stopped", "lost"]
    reason: ReasonDocument
    ranks: Annotated[list[RankDocument], Meta(max_length=100_000)]
    started: NotRequired[Timestamp | None]
    ended: NotRequired[Timestamp | None]
    launcher: NotRequired[LauncherDocument]
    tail: NotRequired[LongText]
    out: NotRequired[LongText]
    progress: NotRequired[dict[str, FiniteNumber] | None]
    disk_free: NotRequired[Count | None]
    left: NotRequired[Count | None]


class SinkState(Struct, frozen=True, omit_defaults=True):
    """What has become of the results that a node keeps on a network volume or in a bucket."""

    state: Name
    folder: Name | None = None
    why: Sentence = Sentence()
    done: Count = 0
    """Bytes copied so far."""

    def document(self) -> dict[str, Any]:
        """The fields that the node sent, for the ledger and run.json."""
        fields: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        return fields


class NodeRunState(Struct, frozen=True):
    """Verb `run`. `handed` maps each path that another node handed over to that node's index."""

    result: ResultDocument | None = None
    sink: SinkState | None = None
    handed: dict[str, SmallInteger] | None = None


class LogPiece(Struct, frozen=True):
    """An item of verb `tail`: the bytes of a log from an offset on."""

    stream: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}(\.[a-z]{1,8})?\Z")] = msgspec.field(name="s")
    offset: Count = msgspec.field(name="o")
    data: bytes = msgspec.field(name="b64")


class LogEnd(Struct, frozen=True):
    """Verb `tail`, once its items have ended. `result` is None while the run lives."""

    result: ResultDocument | None


class VerbShapes(NamedTuple):
    """What one verb may send."""

    answer: Any
    """The shape of its last message."""
    item: Any = None
    """The shape of each item; None: it has none. A `{"beat": time}` may stand among them."""


VERB_SHAPES = {
    "hello": VerbShapes(NodeHello),
    "ping": VerbShapes(Pong),
    "route": VerbShapes(Route),
    "port": VerbShapes(FreePort),
    "addresses": VerbShapes(MachineAddresses),
    "listen": VerbShapes(ListeningPorts),
    "release": VerbShapes(Acknowledgement),
    "reach": VerbShapes(ReachReport),
    "python": VerbShapes(NodePython, ProgressLine),
    "setup": VerbShapes(SetupResult, SetupOutput),
    "plan": VerbShapes(file_schemas.UploadPlan),
    "receive": VerbShapes(Acknowledgement),
    "commit": VerbShapes(file_schemas.UploadCommit),
    "copies": VerbShapes(file_schemas.NodeCopies),
    "edits": VerbShapes(file_schemas.NodeEdits),
    "start": VerbShapes(Acknowledgement),
    "run": VerbShapes(NodeRunState),
    "stop": VerbShapes(Acknowledgement),
    "sample": VerbShapes(Acknowledgement, usage_schemas.NodeSample),
    "urls": VerbShapes(Acknowledgement),
    "home": VerbShapes(Acknowledgement),
    "tail": VerbShapes(LogEnd, LogPiece),
    "outs": VerbShapes(file_schemas.OutputListing),
    "sums": VerbShapes(Acknowledgement, file_schemas.Checksum),
    "left": VerbShapes(program_schemas.UnmatchedListing),
    "made": VerbShapes(file_schemas.MadeFiles),
    "discard": VerbShapes(file_schemas.DiscardedFiles),
    "lease": VerbShapes(Acknowledgement),
}


prepare_shapes([*globals().values()])
