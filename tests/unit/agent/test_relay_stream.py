"""The stream of a push as a node reads it while it comes, in pieces of any size."""

from __future__ import annotations

from typing import Any, BinaryIO, cast

import pytest

from gpuops.agent import wire_format
from gpuops.agent.node import Refusal
from gpuops.agent.peers.push_relay import Stream
from gpuops.agent.peers.relay_conversation import Proof

FILES = {"0": b"a" * 600, "1": b"", "2": b"b\n" * 150_000, "12": b"\n"}
SENT = b"".join(wire_format.head(name, len(content)) + content for name, content in FILES.items()) + wire_format.END


class Onward:
    """The next node."""

    def __init__(self) -> None:
        self.got = b""

    def put(self, data: bytes) -> None:
        self.got += data


def stream_of(data: bytes, size: int, onward: Onward) -> Stream:
    pieces = iter([data[start : start + size] for start in range(0, len(data), size)])
    return Stream(lambda: next(pieces, b""), Proof(), cast(Any, onward))


@pytest.mark.parametrize("size", [7, 605, 1 << 16, len(SENT)])
def test_pieces_of_any_size_are_the_same_files(size: int) -> None:
    onward = Onward()
    stream = stream_of(SENT, size, onward)
    found, taken = {}, []
    for name, length, blocks in wire_format.members(cast(BinaryIO, stream)):
        found[name] = b"".join(blocks)
        assert len(found[name]) == length
        taken.append(stream.taken)
    assert found == FILES
    ends = [SENT.index(wire_format.head(name, len(FILES[name]))) for name in list(FILES)[1:]]
    assert taken == [*ends, len(SENT) - len(wire_format.END)]
    assert stream.taken == stream.received == len(SENT)
    assert onward.got == SENT


@pytest.mark.parametrize("cut", [0, 5, 10, 700, len(SENT) - 1])
def test_one_that_ends_early_is_torn_and_was_passed_on_as_far_as_it_came(cut: int) -> None:
    onward = Onward()
    stream = cast(BinaryIO, stream_of(SENT[:cut], 605, onward))
    with pytest.raises(Refusal) as refused:
        _ = [b"".join(blocks) for _, _, blocks in wire_format.members(stream)]
    assert refused.value.kind == "torn"
    assert onward.got == SENT[:cut]


@pytest.mark.parametrize(
    "line", [b'["1", 2] \n', b'["1", 2][]\n', b'["1", 2, 3]\n', b'["1", -2]\n', b"[1, 2]\n", b"[]"]
)
def test_a_line_that_no_client_writes_is_no_file(line: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        list(wire_format.members(cast(BinaryIO, stream_of(line + b"xx" + wire_format.END, 7, Onward()))))
    assert refused.value.kind == "torn"
