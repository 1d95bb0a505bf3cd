"""What a command says, taken so that a busy machine makes no difference."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator

from tests.conftest import HANG_S, Shell

DRAGS = (
    "asking ", "comparing ", "creating ", "ending ", "examining ", "fetching ", "looking ", "making ",
    "opening the bucket ", "putting back ", "reaching ", "running the set-up ", "saving what ", "starting ",
    "trying the network ", "waiting for ",
)  # fmt: skip
"""How lines begin that are said of what takes longer than a second."""


def spoken(err: str) -> list[str]:
    """Its lines, without those that depend on how long something took."""
    return [line for line in err.splitlines() if not line.startswith(DRAGS)]


def at_terminal(shell: Shell, answer: str, *words: str) -> tuple[int, str, str]:
    """A command typed in a terminal where its questions are answered: exit code, stdout, and all that is shown."""
    ours, its = pty.openpty()
    process = shell.start(*words, stdin=its, stderr=its)
    os.close(its)
    os.write(ours, answer.encode())
    shown = b"".join(_all_of(ours)).decode()
    os.close(ours)
    out, _ = process.communicate(timeout=HANG_S)
    return process.returncode, str(out), shown


def _all_of(terminal: int) -> Iterator[bytes]:
    """What is written to it, until nobody has it any more: what comes at once need not be read at once."""
    while True:
        try:
            yield os.read(terminal, 1 << 16)
        except OSError:  # how Linux says the end
            return
