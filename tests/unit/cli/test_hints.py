"""Every gpuops command that the product's texts name is one that can be typed: the command and each flag exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main

from gpuops.cli.entry import build
from gpuops.cli.help import _options
from gpuops.cli.registry import COMMANDS
from provisioners import registry

SOURCES = Path(__file__).parents[3]
ROOMS = ("gpuops", "provisioners")
HOLE = "HOLE"
"""Stands where a value is put into a text."""
TYPED = re.compile(r"(?P<before>`|: )?\bgpuops (?P<command>[a-z][a-z-]*)")
PROSE = ("could", "is", "makes", "needs", "takes")
"""Words that follow `gpuops` where it is the subject of a sentence behind a colon."""
ENDS_A_LINE = re.compile(r"[`;,)'\"\n]|: | -- ")


@cache
def flags_of(command: str) -> frozenset[str]:
    """A command's flags, those of providers among them where it takes some."""
    group = typer.main.get_command(build([command]))
    found = group.commands[command] if hasattr(group, "commands") else group
    own = {flag for parameter in found.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    if command in ("up", "run", "train", "doctor", "prove", "quota"):
        own |= {f"--{option.name}" for provider in registry.BUILT_IN for option in _options(provider)}
    return frozenset({*own, "--help"})


def wrong_in(text: str) -> list[str]:
    """What could not be typed of the commands that a text names."""
    wrong = []
    for match in TYPED.finditer(text):
        command = match["command"]
        if command not in COMMANDS:
            wrong += [f"gpuops {command}"] if match["before"] is not None and command not in PROSE else []
            continue
        rest = ENDS_A_LINE.split(text[match.end() :], maxsplit=1)[0]
        flags = re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", rest)
        wrong += [f"gpuops {command} {flag}" for flag in flags if flag not in flags_of(command)]
    return wrong


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each string in a module but its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            passed |= {id(part) for part in node.values}
            parts = [str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values]
            yield node.lineno, "".join(parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.lineno, node.value


@pytest.mark.parametrize("room", ROOMS)
def test_every_command_that_a_text_names_can_be_typed(room: str) -> None:
    named, wrong = 0, []
    for path in sorted((SOURCES / room).rglob("*.py")):
        for line, text in texts(path):
            named += len(TYPED.findall(text))
            wrong += [f"{path.relative_to(SOURCES)}:{line}: {one}" for one in wrong_in(text)]
    assert named > (150 if room == "gpuops" else 10), "the texts are found"
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("give it up: gpuops down lab --force", []),
        ("`gpuops dwon lab` ends it", ["gpuops dwon"]),
        ("try again: gpuops reap --now", ["gpuops reap --now"]),
        ("gpuops ssh lab -- top -b -n 1", []),
        ("gpuops up ssh --host x --spot, --wait", []),
        ("what answers is no agent of gpuops at all", []),
    ],
)
def test_a_slip_is_found(text: str, wrong: list[str]) -> None:
    assert wrong_in(text) == wrong
