"""From argv to an exit code: the one place where errors become words."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from gpuops.cli.commands import COMMANDS, short_answer
from gpuops.cli.passed import set_passed, split
from gpuops.errors import BUG, GpuopsError, Interrupted, UsageError

COMPLETING = "_GPUOPS_COMPLETE"
"""What a shell sets in the environment to have a line completed."""


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Nothing escapes as a traceback."""
    if COMPLETING not in os.environ and (answer := short_answer(arguments)) is not None:
        _print(answer, sys.stdout)
        return 0
    ours, passed = split(arguments)
    set_passed(passed)
    as_json = "--json" in ours
    try:
        return _call(ours)
    except (GpuopsError, Interrupted) as error:
        report(error.say, error.hint, error.exit_code, as_json)
        return error.exit_code
    except KeyboardInterrupt:
        report("interrupted", "", Interrupted.exit_code, as_json)
        return Interrupted.exit_code
    except Exception as error:
        return _bug(error, as_json)


def _call(ours: Sequence[str]) -> int:
    """Have typer read the line and call its command. Raises GpuopsError, Interrupted, or what is a bug."""
    names = _meant(ours)
    import typer

    from gpuops.cli.app import build
    from gpuops.cli.complaints import in_our_words

    try:
        code = build(names)(args=list(ours), prog_name="gpuops", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Abort:  # the end of input where a question was asked
        raise Interrupted("interrupted") from None
    except (GpuopsError, Interrupted):
        raise
    except Exception as error:
        words = in_our_words(error, ours, list(COMMANDS))
        if words is None:
            raise
        raise UsageError(*words) from error


def _meant(arguments: Sequence[str]) -> Sequence[str]:
    """The commands that this line may need. Raises UsageError where it names none that exists."""
    word = next((word for word in arguments if not word.startswith("-")), None)
    if COMPLETING in os.environ or word is None:
        return list(COMMANDS)
    if word not in COMMANDS:
        from gpuops.cli.complaints import unknown_command

        raise UsageError(*unknown_command(word, list(COMMANDS)))
    return [word]


def _bug(error: Exception, as_json: bool) -> int:
    import time
    import traceback
    from pathlib import Path

    where = Path(os.environ.get("GPUOPS_HOME") or Path.home() / ".gpuops") / f"bug-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    try:
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        where.write_text("".join(traceback.format_exception(error)))
    except OSError:
        where = Path("(it could not be written down)")
    report(f"a bug in gpuops: {type(error).__name__}: {error}", f"please report it with {where}", BUG, as_json)
    return BUG


def report(say: str, hint: str, code: int, as_json: bool) -> None:
    """One sentence and one thing to do, on stderr; with --json an error object on stdout as well."""
    if as_json:
        import json

        from gpuops.output import SCHEMA

        _print(json.dumps({"schema": SCHEMA, "kind": "error", "say": say, "hint": hint, "exit_code": code}), sys.stdout)
    from gpuops.output import calm

    _print(calm(f"error: {say}" + (f"\nhint: {hint}" if hint else "")), sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    try:
        print(text, file=stream)
    except OSError:
        pass  # the terminal is gone, and with it whoever would read this


def settle() -> None:
    """Write out what is buffered: a terminal or a pipe that is gone must not change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
