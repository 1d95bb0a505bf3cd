"""What tests/unit/cli/terminal/test_writer.py leaves to real processes or sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpuops.cli.terminal import output
from gpuops.cli.terminal.output import Output
from tests.conftest import HANG_S, Shell, until
from tests.unit.cli.terminal.test_writer import read

ROOT = Path(__file__).parents[4]


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


def test_one_that_only_others_have_made_not_to_wait(pipe: tuple[Output, int]) -> None:
    out, there = pipe
    os.set_blocking(out.out.fileno(), False)
    out.line("x" * 300_000)
    time.sleep(0.3)
    assert read(there, 300_001) == b"x" * 300_000 + b"\n"


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in its background without
from gpuops.cli.terminal import writer
from gpuops.cli.terminal.output import Output
writer.DRAIN_TIMEOUT_S = 1.0
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
    until(lambda: (shell.folder / "runs").is_dir() and not shell.cluster_states(), "an end to what the run was on")
    assert command.poll() is None, "it waits for its reader"
    out, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 0, err
    assert [int(line.split()[-1]) for line in out.splitlines() if line.split()[-1].isdecimal()] == [
        *range(100000, 140001)
    ]
    shell.expect_clean()
