"""A reader that does not read holds up nobody, and misses nothing."""

from __future__ import annotations

import os
import threading

import pytest

from gpuops.cli.terminal import output, writer
from gpuops.cli.terminal.output import Output
from tests.conftest import HANG_S, until


def read(number: int, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := os.read(number, 1 << 16)):
        found += data
    return found


def test_what_is_said_is_out_when_there_is_a_reader(pipe: tuple[Output, int]) -> None:
    out, there = pipe
    for index in range(200):
        out.say(f"{index}")
        assert os.read(there, 100) == f"{index}\n".encode()


def test_a_reader_that_has_gone_ends_nothing(pipe: tuple[Output, int]) -> None:
    out, there = pipe
    out.line("x" * 200_000)
    os.close(there)
    out.say("y" * 200_000)
    until(lambda: not output.WRITER.behind, "an end to what nobody reads")
    output.WRITER.drain()


def test_a_reader_that_leaves_in_silence_is_noticed(pipe: tuple[Output, int]) -> None:
    """A run may print nothing for hours after `| head` has seen enough."""
    out, there = pipe
    out.line("one")
    assert os.read(there, 10) == b"one\n"
    assert not out.is_closed
    os.close(there)
    assert out.is_closed


def test_of_what_nobody_reads_there_is_a_limit_and_it_is_told(
    pipe: tuple[Output, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, there = pipe
    monkeypatch.setattr(writer, "QUEUE_MAX_BYTES", 100_000)
    out.hold_up_nothing()
    for index in range(3000):
        out.line(f"{index:04}" + "x" * 95)
    out.say("the verdict")
    found = b""
    while b"the verdict" not in found:
        found += os.read(there, 1 << 16)
    shown = [line for line in found.decode().splitlines() if line.endswith("x")]
    assert {len(line) for line in shown} == {99}, "a line is shown whole or not at all"
    numbers = [int(line[:4]) for line in shown]  # with a gap where the pipe took some while others were let go
    assert numbers == sorted(set(numbers)), "in order, each once"
    assert 1000 <= len(shown) < 3000
    until(lambda: not output.WRITER.behind, "all is written")
    out.say("more")
    told = b""
    while not told.endswith(b"more\n"):
        told += os.read(there, 1000)
    said = told.decode()
    unread = 3000 - len(shown)
    assert said == f"note: {unread} lines are not shown, since they were not read: `gpuops logs` has them\nmore\n"


def test_who_only_shows_waits_for_its_reader(pipe: tuple[Output, int], monkeypatch: pytest.MonkeyPatch) -> None:
    out, there = pipe
    monkeypatch.setattr(writer, "QUEUE_MAX_BYTES", 100_000)
    showing = threading.Thread(target=lambda: [out.line(f"{index:04}" + "x" * 95) for index in range(5000)])
    showing.start()
    lines = read(there, 500_000).decode().splitlines()
    showing.join(HANG_S)
    assert [int(line[:4]) for line in lines] == list(range(5000))


def test_a_live_line_is_not_drawn_for_nobody(pipe: tuple[Output, int], monkeypatch: pytest.MonkeyPatch) -> None:
    out, there = pipe
    monkeypatch.setattr(output, "_is_terminal", lambda _: True)
    out.below("a")
    out.line("x" * 200_000)
    for index in range(1000):
        out.below(f"frame {index}")
    out.below("")
    out.say("end")
    found = b""
    while not found.endswith(b"end\n"):
        found += os.read(there, 1 << 16)
    assert found.count(b"frame") == 0
    assert found.count(output.ERASE.encode()) <= 4
