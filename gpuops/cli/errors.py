"""typer's errors about a command line as one sentence and one hint.

Its exceptions are told apart by what they carry (`option_name`, `param`), not by their class:
typer has brought its own copy of click since 0.24, and used click's before.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from gpuops.cli.help import TYPED, passed_words, providers_with_option, split_provider_options
from gpuops.cli.other_tools import LINE_OF, TrainLine, sort_train_line, torchrun_flag
from gpuops.core.names import did_you_mean

NEAR = 0.75
"""Similarity from which one word counts as a misspelling of another: `--epochs` is no `--detach`."""
SEPARATED: dict[str, tuple[str, str]] = {
    "train": ("what belongs to your script stands behind `--`", "gpuops train multinode train.py -- 50 10"),
    "run": ("your command stands behind `--`", "gpuops run -- python3 hello.py"),
    "export": ("what belongs to your script stands behind `--`", "gpuops export slurm train.py --gpus 4 -- 50 10"),
    "ssh": ("the command stands behind `--`", "gpuops ssh lab -- nvidia-smi"),
}
"""What belongs behind `--`, and an example."""
MODE_FIRST = "say single, multigpu or multinode first"
MODES_HINT = (
    "say how far to spread: gpuops train single (one rank), gpuops train multigpu (a rank per GPU of one node) "
    "or gpuops train multinode (several nodes)"
)
_MISSING_HINTS = {
    ("train", "MODE is missing"): MODES_HINT,
    ("up", "PROVIDER is missing"): "name who has the machines: gpuops up local, gpuops up ssh --host USER@HOST, …; "
    "all of them: gpuops up --help",
}


def explain_parser_error(error: Exception, arguments: Sequence[str], commands: Sequence[str]) -> tuple[str, str] | None:
    """`(say, hint)` for an error of the parser; None for any other. `arguments`: those before `--`."""
    if not hasattr(error, "format_message"):
        return None
    context: Any = getattr(error, "ctx", None)
    command = next((word for word in arguments if not word.startswith("-")), "")
    help_line = f"see: gpuops {command} --help" if command in commands else "see: gpuops --help"
    message = str(error.format_message()).replace("\n", " ").strip().rstrip(".")
    if unknown := re.match(r"No such command '([^']*)'", message):
        return unknown_command(unknown[1], commands)
    if extra := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        mode = str(context.params.get("mode") or "") if command == "train" else ""
        if mode.endswith(".py"):
            return explain_unknown_mode(mode, context)
        return f"'{extra[1]}' is more than gpuops {command} takes", _separator_hint(
            command, arguments, extra[1]
        ) or help_line
    if hasattr(error, "possibilities"):  # an option that does not exist
        name, known = str(getattr(error, "option_name", "")), list(error.possibilities or ())
        if command == "train" and torchrun_flag(name):
            say = f"{name} is a flag of torchrun, which gpuops train starts by itself"
            return say, f"type: {sorted_line(context)}"
        if command == "train" and not _nearest(name, known) and len(arguments) > 1:
            return f"there is no option {name}", (
                f"{_owners_hint(name, arguments)}{SEPARATED[command][0]}: {sorted_line(context)}"
            )
        ran = " ".join(arguments[1:]) if command == "run" and not "".join(arguments[1:2]).startswith("-") else ""
        return f"there is no option {name}{_nearest(name, known)}", _separator_hint(
            command, arguments, ran
        ) or help_line
    if option := getattr(error, "option_name", None):
        needs = "takes no value" if "does not take" in message else "needs a value"
        return f"{option} {needs}", help_line
    say = _explain_parameter(error, message, arguments)
    return say, _MISSING_HINTS.get((command, say), help_line)


def _owners_hint(name: str, arguments: Sequence[str]) -> str:
    """The beginning of a hint for an option of some provider where none is named; empty for any other option."""
    is_named = any(word.partition("=")[0] == "--on" for word in arguments)
    owners = () if is_named else providers_with_option(name)
    return f"{name} goes with --on {' or '.join(owners)}; " if owners else ""


def sorted_line(context: Any) -> str:
    """The typed line of `train` with each word where it belongs."""
    return sort_line(context).typed()


def sort_line(context: Any) -> TrainLine:
    """The typed line of `train`, sorted."""
    takes_value = {
        name: not getattr(parameter, "is_flag", False)
        for parameter in context.command.params
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    rest, provider = split_provider_options(context.meta[TYPED], takes_value)
    line = sort_train_line(rest, {**takes_value, "--help": False, "-h": False}, passed_words() or ())
    line.ours += provider
    return line


def _separator_hint(command: str, arguments: Sequence[str], theirs: str) -> str:
    """The hint that `--` is missing: the typed line with `--` before `theirs` where it ends with those, otherwise an
    example. Empty for commands without such words."""
    if command not in SEPARATED:
        return ""
    rule, example = SEPARATED[command]
    for at in range(1, len(arguments)):
        if " ".join(arguments[at:]) == theirs:
            example = shlex.join(["gpuops", *arguments[:at], "--", *arguments[at:], *(passed_words() or ())])
    return f"{rule}: {example}"


def explain_unknown_mode(mode: str, context: Any) -> tuple[str, str]:
    """`(say, hint)` where `train` was given something else as its mode; a script in its place gets the whole line to
    type."""
    hint = f"{MODE_FIRST}: {sorted_line(context)}" if mode.endswith(".py") else MODES_HINT
    return f"'{mode}' is neither single, multigpu nor multinode", hint


def unknown_command(word: str, commands: Sequence[str]) -> tuple[str, str]:
    """What other tools call so goes before what is spelled alike: `top` is no misspelt `stop`."""
    say = f"there is no command '{word}'"
    if line := LINE_OF.get(word.lower()):
        return say, f"type: {line}"
    if word.endswith(".py"):
        return say, f"type: gpuops train multinode {word}"
    return f"there is no command '{word}'{_nearest(word, commands)}", "see: gpuops --help"


def _explain_parameter(error: Exception, message: str, arguments: Sequence[str]) -> str:
    """The sentence for a missing or unreadable parameter; typer's own for any other error."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return message[:1].lower() + message[1:]
    option = parameter.param_type_name == "option"
    name = max(parameter.opts, key=len) if option else str(parameter.metavar or parameter.name.upper())
    if message.startswith("Missing"):
        return f"{name} is missing"
    kind = "a whole number" if re.search(r"valid int(eger)?\b", message) else "a number"
    return f"{name} takes {kind}, not '{_typed_value(parameter.opts, arguments)}'"


def _typed_value(names: Sequence[str], arguments: Sequence[str]) -> str:
    """The last value typed for an option, as `--nodes two` or `--nodes=two`."""
    for position in range(len(arguments) - 1, -1, -1):
        name, equals, value = arguments[position].partition("=")
        if name in names:
            return value if equals else "".join(arguments[position + 1 : position + 2])
    return ""


def _nearest(word: str, known: Sequence[str]) -> str:
    near = did_you_mean(word, known, alike=NEAR)
    return near and f"; {near}"
