"""The numbers in TensorBoard's event files, without TensorBoard: its reader needs a hundred megabytes of packages.

A file is a series of records (TFRecord: length, its checksum, content, its checksum); a record is a protobuf message
`Event` (tensorflow/core/util/event.proto, framework/summary.proto). Only steps, tags and single numbers are read.
Checksums are not looked at: what came home was compared with the node's file already.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO

MAX_RECORD_BYTES = 1 << 20
"""A longer record is no number: an image, a graph."""
MAX_TAG_BYTES = 200
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Protobuf's wire types."""


def read_scalars(file: BinaryIO, is_late: Callable[[], bool]) -> Iterator[tuple[str, int, float]]:
    """Tag, step and number of each scalar. Ends at the first torn record: the file may still grow; and once `is_late`,
    which is asked at each record: a hostile file may have a billion without a scalar."""
    while not is_late() and len(head := file.read(12)) == 12:
        (length,) = struct.unpack("<Q", head[:8])
        if length > MAX_RECORD_BYTES:
            try:
                file.seek(length + 4, 1)
            except (OSError, OverflowError, ValueError):
                return
            continue
        content = file.read(length)
        if len(file.read(4)) < 4:
            return
        try:
            yield from _scalars_of(content)
        except (ValueError, IndexError, struct.error):
            return  # no event file, or a damaged one


def _scalars_of(event: bytes) -> Iterator[tuple[str, int, float]]:
    step, summaries = 0, []
    for number, value in _fields(event):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes) and (found := _scalar(value)):
                yield found[0], step, found[1]


def _scalar(message: bytes) -> tuple[str, float] | None:
    """Tag and number of a `Summary.Value`: `simple_value`, or a tensor with one number (TensorFlow 2)."""
    fields = dict(_fields(message))
    tag, simple, tensor = fields.get(1), fields.get(2), fields.get(8)
    if not isinstance(tag, bytes) or len(tag) > MAX_TAG_BYTES:
        return None
    if isinstance(tensor, bytes):
        parts = dict(_fields(tensor))
        packed = parts.get(5) or parts.get(4)  # `float_val`, `tensor_content`
        simple = packed if isinstance(packed, bytes) and parts.get(1) == 1 else None  # of DT_FLOAT
    if not isinstance(simple, bytes) or len(simple) != 4:
        return None
    return tag.decode(errors="replace"), struct.unpack("<f", simple)[0]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field. Raises ValueError, IndexError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == VARINT:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        length = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            length, at = _varint(message, at)
        if length is None or at + length > len(message):
            raise ValueError(kind)
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(shift)
