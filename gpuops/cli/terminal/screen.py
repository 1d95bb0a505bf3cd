"""A picture on the whole terminal, drawn again and again until `q`: `gpuops top`. The screen before it comes back."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

QUIT_KEYS = b"qQ\x03\x04"
"""q, Ctrl-C and Ctrl-D."""


def show_on_screen(draw: Callable[[Console], RenderableType], interval_s: float) -> None:
    """Draw on the alternate screen every `interval_s` seconds until a key ends it. A resized terminal is drawn anew
    with the next picture, also where LINES and COLUMNS stand in the environment, which rich would believe for ever;
    `NO_COLOR` is obeyed by rich. Raises Interrupted (`core.signals`)."""
    from rich.console import Console, ConsoleDimensions
    from rich.live import Live

    console = Console(highlight=False)
    with _keys() as wait_for_key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            with suppress(OSError, ValueError):  # no terminal
                if all(size := os.get_terminal_size(sys.stdout.fileno())):
                    console.size = ConsoleDimensions(*size)
            live.update(draw(console), refresh=True)
            if any(key in QUIT_KEYS for key in wait_for_key(interval_s)):
                return


def _wait_without_keys(seconds: float) -> bytes:
    time.sleep(seconds)
    return b""


@contextmanager
def _keys() -> Iterator[Callable[[float], bytes]]:
    """A function that waits so many seconds for a key and returns what was typed."""
    try:
        import select
        import termios
        import tty

        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)
    except (ImportError, OSError, ValueError, termios.error):  # Windows, or no keyboard: Ctrl-C ends it
        yield _wait_without_keys
        return

    def wait(seconds: float) -> bytes:
        is_typed = bool(select.select([number], [], [], seconds)[0])
        return (os.read(number, 64) or QUIT_KEYS) if is_typed else b""  # no byte: the terminal is gone

    tty.setcbreak(number)
    try:
        yield wait
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
