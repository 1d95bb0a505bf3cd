"""The shape of what a node says of files: pushes, results, copies. What is true of them all: `transport.schemas`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gpuops.transport.schema_types import Count, FileCount, FileRow, Name, Nanoseconds, Sha256, prepare_shapes


class UploadPlan(Struct, frozen=True):
    """Verb `plan`. `need` and `ask` are positions in the list of files that the node was given."""

    push: Annotated[str, Meta(pattern=r"^[0-9A-Za-z]{0,64}\Z")]
    """The identifier to commit the upload with; empty where the node's files are up to date."""
    need: list[Count]
    ask: list[Count]
    """Files whose checksum decides whether they are needed."""
    kept: list[Name]
    """Files that were edited on the node and stay there."""
    conflicts: list[Name]
    """Files that were edited on the node and differ here as well."""
    rsync: Name = ""
    """What the node's rsync says of its version; empty without one, and where nobody asked."""
    inplace: bool = False
    """Whether its rsync may write in place; False: an agent that looks for parts in a folder of their own."""
    adds: bool = False
    """Whether all else that the node has stays, as it was asked; False: an agent that knows no such plan."""
    messages: bool = False
    """Whether the agent takes a small push in a message; False: an agent without that verb."""
    replaces: Count | None = None
    """Bytes of the needed files that an older version or a part on the node may spare; None: an agent without
    `relay`."""


class UploadCommit(Struct, frozen=True):
    """Verb `commit`."""

    removed: Count


class NodeEdit(Struct, frozen=True):
    """A pushed file that was edited on the node."""

    path: Name
    state: Literal["changed", "deleted"]


class NodeEdits(Struct, frozen=True):
    """Verb `edits`."""

    files: list[NodeEdit]


class OutputListing(Struct, frozen=True):
    """Verb `outs`: the files of a run that its `--out` patterns match."""

    files: Annotated[list[FileRow], FileCount]


class MadeFiles(Struct, frozen=True):
    """Verb `made`: path, size, time, the run that made the file, and whether it was put back from that run."""

    files: Annotated[list[tuple[Name, Count, Nanoseconds, Name, bool]], FileCount]


class DiscardedFiles(Struct, frozen=True):
    """Verb `discard`."""

    removed: Count


class NodeCopies(Struct, frozen=True):
    """Verb `copies`: path, size, time and mode of files that no push wrote; and those that one wrote, and that were
    changed since."""

    files: Annotated[list[tuple[Name, Count, Nanoseconds, Annotated[int, Meta(ge=0, le=0o777)]]], FileCount]
    edited: Annotated[list[Name], FileCount]


class Checksum(Struct, frozen=True):
    """An item of verb `sums`."""

    path: Name
    sha256: Sha256


prepare_shapes([*globals().values()])
