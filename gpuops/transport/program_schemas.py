"""The shape of what the agent's programs print and note in files, beside the verbs' answers (`transport.schemas`).

`ModeAnswer`, `UnmatchedListing`, `FetchLine` and `RefusalLine` are printed; `ArchiveListing` and `JournalEvent` are
files of a node.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gpuops.transport.schema_types import (
    Address,
    Count,
    FileCount,
    Name,
    Nanoseconds,
    Port,
    Sentence,
    Sha256,
    SmallInteger,
    Timestamp,
    prepare_shapes,
)

MAX_NUMBERS = 1000
"""So many files a node may name in one line."""
FileNumbers = Annotated[list[Count], Meta(max_length=MAX_NUMBERS)]
HeaderText = Annotated[str, Meta(max_length=1000, pattern=r"^[^\r\n\x00\u0100-\U0010ffff]*\Z")]
"""Which another node may send to a server: a header has Latin-1 alone, and one that cannot be sent would stay there."""


class UnmatchedListing(Struct, frozen=True):
    """Mode and verb `left`: path, size, time of the last change, and whether the file was pushed and edited."""

    files: Annotated[list[tuple[Name, Count, Nanoseconds, bool]], FileCount]


class ModeAnswer(Struct, frozen=True):
    """Modes `init`, `nodes` and `end`. `nodes` is None for the modes that list none."""

    nodes: list[dict[str, Any]] | None = None


class FetchEnd(Struct, frozen=True):
    """Everything that mode `fetch` was to bring is in its place: how many files came anew, and their bytes."""

    fetched: Count
    bytes: Count
    version: tuple[HeaderText, HeaderText, Count] | None = None
    """ETag, Last-Modified and size of the only file, where no listing tells them; None also of an older agent."""


class FetchLine(Struct, frozen=True):
    """A line of mode `fetch`: how far it is, which addresses it wants, what it lacks, or its end."""

    at: Count = 0
    total: Count = 0
    waits: Sentence = Sentence()
    need: FileNumbers | None = None
    asks: bool = False
    """Whether it waits to be told what another node has fetched; an older agent never does."""
    lacks: FileNumbers | None = None
    """What another node, which has fetched it, is to send; the last such line has fewer than MAX_NUMBERS."""
    done: FetchEnd | None = None


class ArchiveListing(Struct, frozen=True):
    """`safe.json` of an archive: path, size, checksum and time of each file. The reader compares it with the files."""

    files: Annotated[list[tuple[str, Count, Sha256 | None, Nanoseconds]], FileCount]
    missing: Count | None = None
    """Files that the node could not read."""


class EventReason(Struct, frozen=True):
    """Why a node noted an event."""

    kind: Name
    say: Sentence = Sentence()
    origin: SmallInteger | None = msgspec.field(name="from", default=None)
    """The node that it was heard from; None: at first hand."""


class JournalEvent(Struct, frozen=True):
    """A line of `events.jsonl`."""

    event: Name
    at: Timestamp
    reason: EventReason | None = None


class AgentRefusal(Struct, frozen=True):
    """Why an agent does not do what it was asked for."""

    say: Sentence = Sentence()
    hint: Sentence = Sentence()
    kind: Name = ""
    data: dict[str, Any] | None = None


class RefusalLine(Struct, frozen=True):
    """The last line that a refusing program of the agent writes to stderr."""

    error: AgentRefusal


class RelayPlaces(Struct, frozen=True):
    """Mode `relay`, first: where the node before this one may reach it, the best first."""

    machine: Name
    places: Annotated[list[tuple[Address, Port]], Meta(max_length=8)]
    port: Annotated[int, Meta(ge=0, le=65535)]
    """The port of all places; 0 for the first node, which listens nowhere."""


class RelayReached(Struct, frozen=True):
    """Mode `relay`, second: whether the node after this one was reached, and why not."""

    reached: bool
    why: Sentence = Sentence()


class RelayNews(Struct, frozen=True):
    """Mode `relay`, from then on: one of these at a time."""

    at: Count | None = None
    """Bytes of the stream so far."""
    lost: Sentence | None = None
    """Why the node after this one gets no more."""
    sum: tuple[Count, Sha256] | None = None
    """Of a node that sends its own files: the SHA-256 of all bytes of the stream before this offset."""
    whole: bool | None = None
    """At the end: whether all of the stream came, as the client sent it."""
    altered: bool = False
    """At the end: whether the stream was another than the client's sums say."""
    last: Count | None = None
    """At the end: the last file that is staged."""
    refusal: AgentRefusal | None = None
    """At the end: why this node could stage no more."""


prepare_shapes([*globals().values()])
