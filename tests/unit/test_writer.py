"""A reader that does not read holds up nobody, and misses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.cli.terminal import output, writer
from gpuops.cli.terminal.output import Output
from tests.conftest import HANG_S, Shell, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Output, int]]:
    """An output whose stdout and stderr are one pipe, and the end that it is read from."""
    there, here = os.pipe()
    monkeypatch.setattr(output, "WRITER", writer.Writer())
    with os.fdopen(here, "w", encoding="utf-8", newline="") as stream:
        yield Output(out=stream, err=stream), there
        try:
            os.close(there)
        except OSError:
            pass  # a test has done it


def read(number: int, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := os.read(number, 1 << 16)):
        found += data
    return found


def test_who_does_not_read_holds_up_nobody_and_misses_nothing(pipe: tuple[Output, int]) -> None:
    out, there = pipe
    began = time.monotonic()
    expected = b""
    for index in range(5000):
        (out.say if index % 100 == 0 else out.line)(f"line {index} " + "x" * 100)
        expected += f"line {index} {'x' * 100}\n".encode()
    assert time.monotonic() - began < HANG_S / 4
    assert output.WRITER.behind, "a pipe takes 64 kB"
    assert read(there, len(expected)) == expected
    until(lambda: not output.WRITER.behind, "all is written")


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


def test_one_that_only_others_have_made_not_to_wait(pipe: tuple[Output, int]) -> None:
    out, there = pipe
    os.set_blocking(out.out.fileno(), False)
    out.line("x" * 300_000)
    time.sleep(0.3)
    assert read(there, 300_001) == b"x" * 300_000 + b"\n"


def test_of_what_nobody_reads_there_is_a_limit_and_it_is_told(
    pipe: tuple[Output, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, there = pipe
    monkeypatch.setattr(writer, "LIMIT", 100_000)
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
    assert said == f"note: {3000 - len(shown)} lines are not shown, nobody read: `gpuops logs` has them\nmore\n"


def test_who_only_shows_waits_for_its_reader(pipe: tuple[Output, int], monkeypatch: pytest.MonkeyPatch) -> None:
    out, there = pipe
    monkeypatch.setattr(writer, "LIMIT", 100_000)
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


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in its background without
from gpuops.cli.terminal import writer
from gpuops.cli.terminal.output import Output
writer.ENDING_S = 1.0
out = Output()
if sys.argv[1] == "story":
    out.hold_up_nothing()
for index in range(5000):
    out.line(f"{index} " + "x" * 100)
print("said all", file=sys.stderr, flush=True)
sys.exit(7)
"""


def program(how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, how], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert process.stderr
    assert process.stderr.readline() == "said all\n"
    return process


def test_at_its_end_a_command_waits_for_its_reader() -> None:
    process = program("show")
    time.sleep(1.5)
    assert process.poll() is None
    out, err = process.communicate(timeout=HANG_S)
    assert [line.split()[0] for line in out.splitlines()] == [str(index) for index in range(5000)]
    assert (process.returncode, err) == (7, "")


def test_a_command_that_held_machines_does_not_wait_for_ever() -> None:
    process = program("story")
    assert process.wait(HANG_S) == 7
    assert process.stderr
    assert process.stderr.read() == ""
    process.stdout.close()  # type: ignore[union-attr]


def test_ctrl_c_ends_the_wait_for_a_reader() -> None:
    process = program("show")
    # One that comes before the wait has begun does not end it.
    until(lambda: process.poll() is not None or process.send_signal(signal.SIGINT), "its end")
    assert process.stderr
    assert "Fatal" not in process.stderr.read()
    process.stdout.close()  # type: ignore[union-attr]


def test_machines_are_given_back_while_nobody_reads(shell: Shell) -> None:
    """`gpuops train | less`: the run's output stays where it was until somebody pages on."""
    command = shell.start("run", "--", "seq", "100000", "140000")
    until(lambda: (shell.folder / "runs").is_dir() and not shell.clusters(), "an end to what the run was on")
    assert command.poll() is None, "it waits for its reader"
    out, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 0, err
    assert [int(line.split()[-1]) for line in out.splitlines() if line.split()[-1].isdecimal()] == [
        *range(100000, 140001)
    ]
    shell.expect_clean()
