"""Words arrive at a program as they were given, whatever the login shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.core.errors import UsageError
from gpuops.transport.ssh import connection
from gpuops.transport.ssh.quoting import encoded, shell_line

SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "ksh") if shutil.which(shell)]
words = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30), max_size=5)
nasty = st.lists(st.text("'\"\\$`()!*?~#&;|<>{}[]=-% \n\t\ra", max_size=12), max_size=5)


def through(shell: str, line: str) -> bytes:
    return subprocess.run([shell, "-c", encoded(line)], capture_output=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("shell", SHELLS)
@settings(deadline=None, max_examples=40)
@given(words=st.one_of(words, nasty))
def test_every_word_arrives(shell: str, words: list[str]) -> None:
    wanted = b"".join(encoded(word) + b"\0" for word in ["first", *words])
    assert through(shell, shell_line(["printf", "%s\\0", "first", *words])) == wanted


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "argv", [["printf", "out"], ["sh", "-c", 'printf "$1"', "-x", "out"], ["/usr/bin/env", "printf", "out"]]
)
def test_the_mark_comes_before_the_first_byte(shell: str, argv: list[str]) -> None:
    line, mark = connection.mark_output(argv)
    assert through(shell, line) == mark + b"out"
    assert mark.strip() not in line.encode()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_program_with_a_dash_in_front(shell: str) -> None:
    line, mark = connection.mark_output(["-odd"])
    done = subprocess.run([shell, "-c", line], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (127, mark)
    assert b"-odd" in done.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [([], "no command"), (["a\0b"], "NUL"), (["x" * 200_000], "longer than"), (["\ud800"], "no character")],
)
def test_what_no_shell_takes_is_refused_here(argv: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        shell_line(argv)


def test_noise_is_dropped_wherever_the_pieces_end() -> None:
    stream = b"noise, noise" + b"MARK\n" + b"out"
    for size in range(1, len(stream) + 1):
        pieces = iter([stream[at : at + size] for at in range(0, len(stream), size)] + [b""])
        rest = connection.read_to_mark(lambda _: next(pieces), b"MARK\n")  # noqa: B023
        assert rest + b"".join(pieces) == b"out"


def test_noise_has_a_limit() -> None:
    with pytest.raises(connection.NoMark) as caught:
        connection.read_to_mark(lambda _: b"x" * 65536, b"MARK\n")
    assert len(caught.value.seen) <= connection.MAX_NOISE_BYTES + 65536
