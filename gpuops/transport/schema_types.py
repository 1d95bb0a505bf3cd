"""Numbers and texts with bounds, of which the shapes of what a node says are made."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, is_typeddict

import msgspec
from msgspec import Meta, Struct

from gpuops.transport.tar_reader import MAX_FILES

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Bytes or files: at most the largest size of a file."""
Nanoseconds = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
SmallInteger = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""An exit code, a signal, a rank, a node's index."""
Port = Annotated[int, Meta(ge=1, le=65535)]
Timestamp = Annotated[float, Meta(ge=0.0, le=253_402_300_799.0)]
"""UTC seconds, until the end of the year 9999, which is as far as `datetime` goes."""
FiniteNumber = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Amount = Annotated[float, Meta(ge=0.0, le=1e15)]
Name = Annotated[str, Meta(max_length=4096)]
"""Any short text, file names included. `SafeFolder` decides whether a file of that name may be written here."""
FileCount = Meta(max_length=MAX_FILES)
LongText = Annotated[str, Meta(max_length=1 << 20)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
FileRow = tuple[Name, Count, Nanoseconds]
"""A file's path, its size in bytes and the time of its last change."""


class Address(str):
    """An IP address."""


class Sentence(str):
    """A sentence of a node on one short line, so that it can neither forge nor hide a line of gpuops' output."""


def prepare_shapes(shapes: Iterable[object]) -> None:
    """Have msgspec build its description of each Struct and TypedDict among `shapes`; other objects are skipped.

    msgspec builds it at the first use of a type, and another thread that uses the type meanwhile takes an unfinished
    description for a complete one, which crashes the interpreter. Threads talk to nodes, so a module with shapes calls
    this at its end, under the lock of its import.
    """
    for shape in shapes:
        if is_typeddict(shape) or isinstance(shape, type(Struct)):
            msgspec.json.Decoder(shape)
