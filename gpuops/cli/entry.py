"""Runs one command line: builds the typer app of the typed command, and turns every error into an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TextIO

from gpuops.cli.registry import COMMANDS, HEAD, short_answer
from gpuops.core.errors import BUG, GpuopsError, Interrupted, UsageError

if TYPE_CHECKING:
    import typer


def build(names: Iterable[str]) -> typer.Typer:
    """A typer app with these commands only: building all of them takes longer than most commands run."""
    import typer

    app = typer.Typer(
        name="gpuops",
        help=HEAD,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    wanted = list(names)
    for module in dict.fromkeys(COMMANDS[name].module for name in wanted):
        import_module(f"gpuops.cli.{module}").register(app)
    app.registered_commands = [command for command in app.registered_commands if command.name in wanted]
    return app


def _root() -> None:
    pass  # `gpuops` alone, its help and its version are answered before typer is imported: it takes longer than they do


DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
COMPLETING = "_GPUOPS_COMPLETE"
"""The variable by which a shell asks for completions."""


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. No exception leaves it."""
    if arguments and arguments[0] == "help":  # as `git help log` and `aws help` take it
        arguments = [*arguments[1:], "--help"]
    if COMPLETING not in os.environ and (answer := short_answer(arguments)) is not None:
        _print(answer, sys.stdout)
        return 0
    from gpuops.cli.help import set_passed_words, split_at_separator

    ours, passed = split_at_separator(arguments)
    set_passed_words(passed)
    as_json = "--json" in ours
    try:
        return _call(ours)
    except (GpuopsError, Interrupted) as error:
        report(error.message, error.hint, error.exit_code, as_json)
        return error.exit_code
    except KeyboardInterrupt:
        report("interrupted", "", Interrupted.exit_code, as_json)
        return Interrupted.exit_code
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRORS:
            report(f"this computer cannot write: {error}", "free some space, then try again", 4, as_json)
            return 4
        return _bug(error, as_json)


def _call(ours: Sequence[str]) -> int:
    """Let typer parse the line and call its command. Raises GpuopsError, Interrupted, or any exception of a bug."""
    names = _commands_of(ours)
    import typer

    from gpuops.cli.errors import explain_parser_error

    try:
        code = build(names)(args=list(ours), prog_name="gpuops", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Abort:  # end of input at a question
        raise Interrupted("interrupted") from None
    except (GpuopsError, Interrupted):
        raise
    except Exception as error:
        words = explain_parser_error(error, ours, list(COMMANDS))
        if words is None:
            raise
        raise UsageError(*words) from error


def _commands_of(arguments: Sequence[str]) -> Sequence[str]:
    """The commands that this line may need. Raises UsageError for an unknown command."""
    if COMPLETING in os.environ:
        from gpuops.cli.completion import typed

        whole = typed(os.environ, list(COMMANDS))
        return list(COMMANDS) if whole is None else [whole]
    word = next((word for word in arguments if not word.startswith("-")), None)
    if word is None:
        return list(COMMANDS)
    if word not in COMMANDS:
        from gpuops.cli.errors import unknown_command

        raise UsageError(*unknown_command(word, list(COMMANDS)))
    return [word]


def _bug(error: Exception, as_json: bool) -> int:
    import time
    import traceback
    from pathlib import Path

    try:
        home = Path(os.environ.get("GPUOPS_HOME") or Path.home() / ".gpuops")
        where = home / f"bug-{time.strftime('%Y%m%d-%H%M%S')}.txt"
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        where.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="replace")
    except (OSError, RuntimeError):  # a full disk, a user without a home
        where = Path("(the traceback could not be saved)")
    report(f"a bug in gpuops: {type(error).__name__}: {error}", f"please report it with {where}", BUG, as_json)
    return BUG


def report(say: str, hint: str, code: int, as_json: bool) -> None:
    """One sentence and one thing to do, on stderr; with --json an error object on stdout as well."""
    from gpuops.cli.terminal.output import send
    from gpuops.core.format import SCHEMA, calm

    if as_json:
        import json

        document = {"schema": SCHEMA, "kind": "error", "say": say, "hint": hint, "exit_code": code}
        send(sys.stdout, json.dumps(document) + "\n")

    say, hint = (" ".join(text.split("\n")) for text in (say, hint))  # typed words may hold line breaks
    send(sys.stderr, calm(f"error: {say}" + (f"\nhint: {hint}" if hint else "")) + "\n")


def _print(text: str, stream: TextIO) -> None:
    try:
        print(text, file=stream)
    except OSError:
        pass  # the terminal is gone


def open_closed_streams() -> None:
    """Open /dev/null for standard streams that the shell closed (`>&-`), so that no opened file takes their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (to stay open)


def flush_streams() -> None:
    """Flush stdout and stderr; a closed terminal or pipe does not change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
