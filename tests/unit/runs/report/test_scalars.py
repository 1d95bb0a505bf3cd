"""TensorBoard's event files, made by its own messages."""

from __future__ import annotations

import io
import struct

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from gpuops.runs.report.scalars import MAX_RECORD_BYTES, read_scalars


def record(event: Event) -> bytes:
    content = event.SerializeToString()
    return struct.pack("<Q", len(content)) + b"\0" * 4 + content + b"\0" * 4


def scalar(tag: str, step: int, value: float) -> bytes:
    return record(
        Event(wall_time=1.7e9, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))
    )


def tensor(tag: str, step: int, value: float) -> bytes:
    event = Event(step=step)
    one = event.summary.value.add(tag=tag)
    one.tensor.dtype = 1
    one.tensor.float_val.append(value)
    return record(event)


FILE = record(Event(file_version="brain.Event:2")) + scalar("loss", 0, 2.5) + tensor("acc", 70_000, 0.5)


def read(data: bytes) -> list[tuple[str, int, float]]:
    return list(read_scalars(io.BytesIO(data), lambda: False))


def test_plain_numbers_and_tensors_of_one() -> None:
    assert read(FILE) == [("loss", 0, 2.5), ("acc", 70_000, 0.5)]


def test_images_and_texts_are_passed_over() -> None:
    image = record(Event(summary=Summary(value=[Summary.Value(tag="x" * MAX_RECORD_BYTES, simple_value=1.0)])))
    words = record(Event(summary=Summary(value=[Summary.Value(tag="words")])))
    assert read(image + words + FILE)[0] == ("loss", 0, 2.5)


@pytest.mark.parametrize("length", range(0, len(FILE), 7))
def test_a_file_that_still_grows(length: int) -> None:
    assert read(FILE[:length]) == read(FILE)[: len(read(FILE[:length]))]


@pytest.mark.parametrize(
    "data",
    [b"", b"no event file at all, but some text", b"\xff" * 64,
     struct.pack("<Q", 3) + b"\0" * 4 + b"\x2a\x7f\xff" + b"\0" * 4,
     struct.pack("<Q", 12) + b"\0" * 4 + b"\x10" + b"\xff" * 11 + b"\0" * 4],
)  # fmt: skip
def test_what_is_no_event_file_gives_nothing(data: bytes) -> None:
    assert read(data) == []


def test_records_without_a_number_take_no_more_time_than_there_is() -> None:
    endless = type("Endless", (io.BytesIO,), {"read": lambda _, size: b"\0" * size})()
    looks = iter([False, False, True])
    assert list(read_scalars(endless, lambda: next(looks))) == []
