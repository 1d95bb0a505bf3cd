"""The command line: parse, call one story, print. No logic and no SDK lives here."""

from __future__ import annotations

import sys
from typing import NoReturn


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code (design: 0, 1, 2, 3, 4, 5, 130; a bug is 70)."""
    code = None
    try:
        from gpuops.cli.entry import execute, flush_streams, open_closed_streams

        open_closed_streams()
        code = execute(sys.argv[1:] if argv is None else argv)
        flush_streams()
    except KeyboardInterrupt:  # before any command was begun, or after its end
        code = 130 if code is None else code
    sys.exit(code)
