"""What a node may say: the shape of every answer (docs/protocol.md), held against it before anybody here reads it.

    verb → what its items are, and its last word        VERBS
    the agent's bulk programs → their one document      LEFT, TOLD
    what lies in files of a node                        Result, Event, Kept

A field that an agent of ours always sends is required; one that came later, or may be missing, is `NotRequired`; what
nobody here reads is not in a shape, and does not get past it. Numbers have bounds, so that none overflows a clock, a
file or a float. What a person's own program may have written (`progress`, torch's `error`) is taken as it comes.
"""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, is_typeddict

import msgspec
from msgspec import Meta, Struct

from gpuops.agent.wire import PROTOCOL
from gpuops.core.errors import MalformedAnswer, NodeRefused
from gpuops.transport.tar_reader import FILES

SHOWN = 200
"""How much of what is wrong goes into a message, in characters."""

SAID = 2000
"""How much of a node's own sentence is shown, in characters."""
CONTAINERS = 4 * FILES
"""The most lists and objects in what a node says: each takes thirty times as much memory here as in its line."""

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Bytes, or files: what a file's size can be."""
Nanoseconds = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Number = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""An exit code, a signal, a rank, a node."""
Port = Annotated[int, Meta(ge=1, le=65535)]
Moment = Annotated[float, Meta(ge=0.0, le=253_402_300_799.0)]
"""UTC seconds, until the end of the year 9999: what every clock here can show."""
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Amount = Annotated[float, Meta(ge=0.0, le=1e15)]
Name = Annotated[str, Meta(max_length=4096)]
"""Of whatever, files included. Where one may lie here, `SafeFolder` decides."""
Many = Meta(max_length=FILES)
Words = Annotated[str, Meta(max_length=1 << 20)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Address(str):
    """An IP address."""


class Sentence(str):
    """A node's own words, as one short line: they look like no other line of gpuops, and hide none."""


# -- the answers of verbs ---------------------------------------------------------------------------


class Nothing(TypedDict):
    """That it is an answer says it all."""


class Gpu(Struct, frozen=True):
    """An NVIDIA GPU, as `nvidia-smi` numbers and names it."""

    index: Number
    name: Name
    driver: Name
    compute_cap: Name = ""


class WatchdogLease(Struct, frozen=True):
    """The lease that a node's watchdog keeps, by the node's clock."""

    hard_wall: Moment | None = None
    idle_s: Amount | None = None
    boot_wall: Moment | None = None


class LocalDisk(Struct, frozen=True):
    """The disk of a rented machine that data and environments lie on."""

    path: Name
    free: Count


class NodeHello(Struct, frozen=True):
    """What a node says of itself: verb `hello`."""

    protocol: Number
    cores: Annotated[int, Meta(ge=1, le=1 << 20)]
    gpus: Annotated[list[Gpu], Meta(max_length=4096)]
    folder: Name
    time: Moment | None = None
    """Its clock; agents of before verb `ping` told the time say it here alone."""
    busy: Name | None = None
    """The run that is going on there."""
    scratch: LocalDisk | None = None
    lease: WatchdogLease | None = None


class OtherHello(Struct, frozen=True):
    """The `hello` of an agent that speaks another protocol: nothing more is known of its answers."""

    protocol: Number


class Pong(Struct, frozen=True):
    time: Moment | None = None


class Route(Struct, frozen=True):
    interface: Name
    address: Address


class PortFound(Struct, frozen=True):
    port: Port


class Entry(Struct, frozen=True):
    interface: Name
    address: Address
    kind: Name = "direct"
    speed: Count | None = None
    """In Mbit/s, where the interface says."""


class Addresses(Struct, frozen=True):
    machine: Name
    addresses: Annotated[list[Entry], Meta(max_length=4096)]


class Listening(Struct, frozen=True):
    fresh: list[Port]
    ephemeral: list[Port]


class Attempt(Struct, frozen=True):
    node: Number
    address: Name
    port: Port
    state: Name
    why: Name
    source: Name
    ms: Amount | None
    mb_s: Amount | None


class Reached(Struct, frozen=True):
    tried: list[Attempt]


class Python(TypedDict):
    python: Name
    version: Name
    torch: Name | None
    cuda: NotRequired[Name | None]
    why: Name


class Saying(TypedDict):
    say: Sentence


class Output(TypedDict):
    b64: bytes


class SetUp(TypedDict):
    code: Number | None
    skipped: bool


class Plan(TypedDict):
    push: Annotated[str, Meta(pattern=r"^[0-9A-Za-z]{0,64}\Z")]
    need: list[Count]
    ask: list[Count]
    kept: list[Name]
    conflicts: list[Name]


class Committed(TypedDict):
    removed: Count


class Edit(TypedDict):
    path: Name
    state: Literal["changed", "deleted"]


class Edits(TypedDict):
    files: list[Edit]


class Exit(TypedDict):
    code: NotRequired[Number | None]
    signal: NotRequired[Number | None]


Reason = TypedDict(
    "Reason",
    {
        "kind": Name,
        "say": NotRequired[Sentence],
        "node": NotRequired[Number],
        "from": NotRequired[Number],
        "at": NotRequired[Moment | None],
        "by": NotRequired[Name],
        "rank": NotRequired[Number],
        "signal": NotRequired[Number | None],
        "reclaimed": NotRequired[bool],
    },
)


class Rank(TypedDict):
    rank: Number
    local: NotRequired[Number]
    code: NotRequired[Number | None]
    signal: NotRequired[Number | None]
    started: NotRequired[Moment | None]
    ended: NotRequired[Moment | None]
    joined: NotRequired[bool | None]
    oom: NotRequired[bool]
    after_stop: NotRequired[bool]
    error: NotRequired[Any]
    tail: NotRequired[Words]
    out: NotRequired[Words]


class Result(TypedDict):
    """How a run ended on a node: result.json."""

    outcome: Literal["done", "failed", "stopped", "lost"]
    reason: Reason
    ranks: Annotated[list[Rank], Meta(max_length=100_000)]
    started: NotRequired[Moment | None]
    ended: NotRequired[Moment | None]
    launcher: NotRequired[Exit]
    tail: NotRequired[Words]
    out: NotRequired[Words]
    progress: NotRequired[dict[str, Finite] | None]
    disk_free: NotRequired[Count | None]
    left: NotRequired[Count | None]


class Sink(TypedDict):
    state: Name
    folder: NotRequired[Name | None]
    why: NotRequired[Sentence]
    done: NotRequired[Count]


class Run(TypedDict):
    result: NotRequired[Result | None]
    sink: NotRequired[Sink | None]
    handed: NotRequired[dict[str, Number] | None]


class Piece(TypedDict):
    s: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}(\.[a-z]{1,8})?\Z")]
    o: Count
    b64: bytes


class Tail(TypedDict):
    result: Result | None


class Outs(TypedDict):
    files: Annotated[list[tuple[Name, Count, Nanoseconds]], Many]


class Sum(TypedDict):
    path: Name
    sha256: Sha256


class Shape(NamedTuple):
    """Of one verb."""

    last: Any
    """Its last word."""
    item: Any = None
    """Each of its items; None: it has none. A `{"beat": time}` may stand among them."""


VERBS = {
    "hello": Shape(NodeHello),
    "ping": Shape(Pong),
    "route": Shape(Route),
    "port": Shape(PortFound),
    "addresses": Shape(Addresses),
    "listen": Shape(Listening),
    "release": Shape(Nothing),
    "reach": Shape(Reached),
    "python": Shape(Python, Saying),
    "setup": Shape(SetUp, Output),
    "plan": Shape(Plan),
    "commit": Shape(Committed),
    "edits": Shape(Edits),
    "start": Shape(Nothing),
    "run": Shape(Run),
    "stop": Shape(Nothing),
    "urls": Shape(Nothing),
    "home": Shape(Nothing),
    "tail": Shape(Tail, Piece),
    "outs": Shape(Outs),
    "sums": Shape(Nothing, Sum),
    "lease": Shape(Nothing),
}


# -- what programs and files say --------------------------------------------------------------------


class Left(TypedDict):
    """Mode `left`."""

    files: Annotated[list[tuple[Name, Count, Nanoseconds, bool]], Many]


class Told(TypedDict):
    """Modes `init`, `nodes`, `end`."""

    nodes: NotRequired[list[dict[str, Any]]]


class Kept(TypedDict):
    """`safe.json` of an archive. What it names is held against the archive's own members."""

    files: Annotated[list[tuple[str, Count, Sha256 | None, Nanoseconds]], Many]
    missing: NotRequired[Count | None]


class Event(TypedDict):
    """A line of `events.jsonl`."""

    event: Name
    at: Moment
    reason: NotRequired[Reason]


class Refusal(TypedDict):
    say: NotRequired[Sentence]
    hint: NotRequired[Sentence]
    kind: NotRequired[Name]
    data: NotRequired[dict[str, Any] | None]


class Complaint(TypedDict):
    error: dict[str, Any]


def _is_struct(what: object) -> bool:
    return isinstance(what, type) and issubclass(what, Struct)


# msgspec learns a shape at its first use, and keeps what it has learnt so far where a second thread takes it for whole:
# a crash of the interpreter. Nodes are asked by threads, so each shape is learnt here, under the lock of the import.
for _shape in [each for each in list(globals().values()) if is_typeddict(each) or _is_struct(each)]:
    msgspec.json.Decoder(_shape)


def message(label: str, verb: str, line: bytes) -> tuple[Literal["item", "ok", "beat"], Any]:
    """One line of the agent about a request. Raises NodeRefused; MalformedAnswer where the shape is wrong."""
    shape = VERBS[verb]
    with sound(label, f"to '{verb}'"):
        said = parsed(line)
        match said:
            case {"error": dict(error)}:
                raise refusal(label, error)
            case {"item": {"beat": int() | float()}} if shape.item:
                return "beat", None
            case {"item": dict(item)} if shape.item:
                return "item", shaped(item, shape.item)
            case {"ok": {"protocol": int(other)}} if verb == "hello" and other != PROTOCOL:
                return "ok", OtherHello(other)
            case {"ok": dict(last)}:
                return "ok", shaped(last, shape.last)
        raise ValueError("neither an item nor an answer")


def document(label: str, what: str, text: bytes, shape: Any) -> Any:
    """What a program or a file says in one document. `what`: for the message. Raises MalformedAnswer."""
    with sound(label, what):
        return shaped(parsed(text), shape)


def refusal(label: str, error: Any) -> NodeRefused:
    """An agent's own refusal. Raises ValueError for what is none."""
    said: Refusal = shaped(error, Refusal)
    words = (said.get("say") or "refused", said.get("hint") or "", said.get("kind") or "refused")
    return NodeRefused(f"{label}: {words[0]}", words[1], words[2], said.get("data"))


def refused(label: str, last: str) -> NodeRefused | None:
    """The same of a program that has ended: the last line that it wrote to stderr. None for anything else."""
    try:
        said: Complaint = shaped(parsed(last.encode(errors="replace")), Complaint)
        return refusal(label, said["error"])
    except ValueError:
        return None


def result(told: Any) -> Result | None:
    """What is said to be a result.json, of a node that may not be asked any more; None where it is none."""
    try:
        found: Result = shaped(parsed(told) if isinstance(told, bytes) else told, Result)
        return found
    except ValueError:
        return None


def event(line: bytes) -> Event | None:
    """A line of a node's journal; None for one that was cut off, or is none of ours."""
    try:
        found: Event = shaped(parsed(line), Event)
        return found
    except ValueError:
        return None


def parsed(text: bytes) -> Any:
    """JSON, in which NaN and Infinity are nothing (null): Python writes them, and no number of ours may be one.

    The standard library's parser, since it bears what lies in the names of files that are not UTF-8. Raises ValueError.
    """
    if len(text) > CONTAINERS and text.count(b"[") + text.count(b"{") > CONTAINERS:
        raise ValueError("too many parts")
    try:
        return json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
    except RecursionError:
        raise ValueError("too deep") from None
    except ValueError:
        raise ValueError("no JSON") from None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if isfinite(number) else None


def shaped(value: Any, shape: Any) -> Any:
    """`value` as what it must be, without what else is in it. Raises ValueError, which says where it differs."""
    try:
        return msgspec.convert(value, shape, dec_hook=_of_ours)
    except UnicodeEncodeError:
        raise ValueError("not UTF-8") from None
    except RecursionError:
        raise ValueError("too deep") from None
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _of_ours(kind: type, value: Any) -> Address | Sentence:
    """The types that msgspec does not know. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    if kind is Sentence:
        return Sentence(" ".join(value[:SAID].split()))
    ipaddress.ip_address(value)
    return Address(value)


@contextmanager
def sound(label: str, what: str) -> Iterator[None]:
    """Whatever is wrong with an answer becomes one sentence. Raises MalformedAnswer."""
    try:
        yield
    except ValueError as error:
        why = "".join(char if char.isprintable() else "?" for char in f"{what}: {error}")
        raise MalformedAnswer(label, why if len(why) <= SHOWN else why[:SHOWN] + "…") from None
