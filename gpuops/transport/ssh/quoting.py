"""The one place that quotes for a remote shell.

SSH has no argument list: the far side gives one line of text to the user's login shell. Every word is put
in single quotes, in which sh, bash, dash and zsh change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.core.errors import UsageError

LINE_LIMIT = 100_000
"""Bytes of a line. Linux takes 128 KiB as one argument, and the login shell gets the line as one."""


def shell_line(argv: Sequence[str]) -> str:
    """`argv` as a line that a POSIX shell takes apart into exactly these words. Raises UsageError."""
    if not argv:
        raise UsageError("there is no command to run on the node", "name a program")
    if any("\0" in word for word in argv):
        raise UsageError("a command line cannot hold a NUL character", "send such bytes through a file or stdin")
    line = " ".join(_quoted(word) for word in argv)
    try:
        size = len(encoded(line))
    except UnicodeEncodeError as error:
        raise UsageError(
            f"a command line cannot hold {error.object[error.start]!a}, which is no character",
            "send it through a file or stdin",
        ) from error
    if size > LINE_LIMIT:
        raise UsageError(
            f"the command line is longer than {LINE_LIMIT} bytes, which a remote shell may not take",
            "put the long part into a file",
        )
    return line


def encoded(line: str) -> bytes:
    """What goes over the wire: UTF-8, and bytes of a file name that are not UTF-8 as they are."""
    return line.encode("utf-8", "surrogateescape")


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
