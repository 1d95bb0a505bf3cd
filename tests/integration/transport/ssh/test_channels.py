"""What every kind of connection promises: the same programs, the same bytes, the same ends."""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuops.core.errors import NodeError
from gpuops.transport.connection import MAX_EARLY_BYTES, Connection, ProcessConnection
from tests.conftest import HANG_S, until
from tests.integration.transport.ssh.programs import feed, read_all, run, write_on


def test_bytes_arrive_as_they_were(any_kind: Connection) -> None:
    code, out, _ = run(any_kind, ["cat"], every := bytes(range(256)) * 40)
    assert (code, out) == (0, every)


def test_20_mb_go_both_ways_at_once(any_kind: Connection) -> None:
    data = random.Random(3).randbytes(20 << 20)
    assert run(any_kind, ["cat"], data)[:2] == (0, data)


def test_the_first_bytes_of_its_input_come_with_a_programs_start(any_kind: Connection) -> None:
    early = random.Random(4).randbytes(MAX_EARLY_BYTES)
    channel = any_kind.open(["sha256sum"], early)
    channel.stdin.write(b"and the rest")
    channel.stdin.close()
    assert channel.stdout.read(64).decode() == hashlib.sha256(early + b"and the rest").hexdigest()
    channel.close()
    assert run(any_kind, ["echo", "well"])[1] == b"well\n"
    ended = any_kind.open(["true"], early)  # one that reads nothing of it
    assert ended.wait(HANG_S) == 0
    ended.close()


def test_output_begins_with_the_programs_first_byte(any_kind: Connection) -> None:
    assert run(any_kind, ["printf", "first"])[1] == b"first"


def test_exit_codes(any_kind: Connection) -> None:
    for code in (0, 1, 3, 127, 200):
        assert run(any_kind, ["sh", "-c", f"exit {code}"])[0] == code


def test_stderr_is_kept_apart_and_its_end_is_kept(any_kind: Connection) -> None:
    _, out, errors = run(any_kind, ["sh", "-c", "echo out; echo wrong >&2"])
    assert out == b"out\n"
    assert errors.endswith("wrong\n")
    program = "import sys; sys.stderr.write('x' * 200000 + 'the end'); print('done')"
    _, out, errors = run(any_kind, [sys.executable, "-c", program])
    assert out == b"done\n"
    assert errors.endswith("xxx" + "the end")
    assert len(errors) <= 65536


def test_reading_takes_what_is_there(any_kind: Connection) -> None:
    channel = any_kind.open(["sh", "-c", "echo ready; cat"])
    assert channel.stdout.read(65536) == b"ready\n"  # and does not wait for more
    channel.stdin.write(b"ab")
    assert channel.stdout.read(1) == b"a"
    assert channel.stdout.read(1) == b"b"
    channel.stdin.close()
    assert channel.stdout.read(1) == b""
    assert channel.wait(60) == 0
    channel.close()


def test_waiting_has_a_limit(any_kind: Connection) -> None:
    channel = any_kind.open(["cat"])
    with pytest.raises(TimeoutError):
        channel.wait(0.2)
    channel.stdin.close()
    assert channel.wait(60) == 0
    channel.close()
    channel.close()


def test_closing_ends_the_programs_streams(any_kind: Connection, tmp_path_factory: pytest.TempPathFactory) -> None:
    note = tmp_path_factory.mktemp("close") / "note"
    channel = any_kind.open(["sh", "-c", 'echo here; trap "" HUP; cat >/dev/null; echo ended > "$1"', "sh", str(note)])
    assert channel.stdout.read(5) == b"here\n"
    channel.close()
    # A local program is killed, one on a host at least sees the end of its input.
    until(lambda: note.exists() or _gone(str(note)), "the program has seen its end")


def _gone(word: str) -> bool:
    import psutil

    return not any(word in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


def test_closing_ends_whoever_reads(any_kind: Connection) -> None:
    channel = any_kind.open(["sh", "-c", "cat"])
    ends: list[object] = []

    def read() -> None:
        try:
            ends.append(channel.stdout.read(1))
        except (OSError, ValueError) as error:
            ends.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    channel.close()
    reader.join(HANG_S)
    assert ends
    assert isinstance(ends[0], Exception) or ends[0] == b""


def test_closing_the_connection_ends_its_programs(any_kind: Connection) -> None:
    channels = [any_kind.open(["cat"]) for _ in range(3)]
    any_kind.close()
    for channel in channels:
        with pytest.raises((OSError, ValueError)):
            write_on(channel)
    assert run(any_kind, ["echo", "again"])[1] == b"again\n"


def test_a_program_that_takes_nothing_refuses_its_input(any_kind: Connection) -> None:
    channel = any_kind.open(["true"])
    channel.wait(60)
    with pytest.raises((OSError, ValueError)):
        write_on(channel)
    channel.close()


def test_a_program_that_is_not_there_says_so(any_kind: Connection) -> None:
    name = "no-such-program-anywhere"
    if isinstance(any_kind, ProcessConnection):
        with pytest.raises(NodeError, match=name):
            any_kind.open([name])
        return
    code, _, errors = run(any_kind, [name])
    assert code == 127
    assert name in errors


def test_12_programs_at_once(any_kind: Connection) -> None:
    """sshd carries 10 on one login (MaxSessions)."""
    with ThreadPoolExecutor(12) as threads:
        channels = list(threads.map(lambda number: any_kind.open(["sh", "-c", f"cat; echo {number}"]), range(12)))
    writers = [feed(channel, b"to each ") for channel in channels]
    assert [read_all(channel) for channel in channels] == [f"to each {number}\n".encode() for number in range(12)]
    for channel, writer in zip(channels, writers, strict=True):
        writer.join(HANG_S)
        assert channel.wait(60) == 0
        channel.close()


AWKWARD = [
    "", " ", "two words", "a'b", 'a"b', "$HOME", "$(id)", "`id`", "a\nb", "a\tb", "\\", "\\n", "-n", "--", "*", "?",
    "~", "a;b", "a&b", "a|b", ">x", "<x", "(x)", "{a,b}", "!", "!!", "#x", "ä€🙂", "\x01\x7f", "%s", "'", "''", "a\\'b",
    "\r\n", "\udcff\udcfe",
]  # fmt: skip


def test_arguments_arrive_byte_for_byte(any_kind: Connection) -> None:
    """Nothing in a word is anything but text to any shell on the way."""
    code, out, errors = run(any_kind, ["printf", "%s\\0", *AWKWARD])
    assert code == 0, errors
    assert out.split(b"\0")[:-1] == [word.encode("utf-8", "surrogateescape") for word in AWKWARD]
