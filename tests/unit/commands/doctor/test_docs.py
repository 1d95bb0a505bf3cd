"""docs/doctor.md names every finding there is, with its level, and none that there is not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from gpuops.commands.doctor.report import SETUP

ROOT = Path(__file__).parents[4]
ROW = re.compile(r"\| ((?:`[\w-]+`(?:, )?)+) \| ((?:error|warning|note)(?:, \w+)?) \|")


def in_the_code() -> dict[str, set[str]]:
    """Subject -> levels, from the calls of `error`, `warning` and `note`."""
    found: dict[str, set[str]] = {SETUP: {"error", "warning"}}
    for path in (ROOT / "gpuops" / "commands" / "doctor").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                if node.func.id in ("error", "warning", "note") and isinstance(first, ast.Constant):
                    found.setdefault(str(first.value), set()).add(node.func.id)
    return found


def in_the_page() -> dict[str, set[str]]:
    found = {}
    for names, levels in ROW.findall((ROOT / "docs" / "doctor.md").read_text()):
        for name in re.findall(r"[\w-]+", names):
            found[name] = set(levels.split(", "))
    return found


def test_the_page_tells_every_finding_and_its_level() -> None:
    assert in_the_page() == in_the_code()


def test_every_finding_is_shown_by_a_test() -> None:
    tests = "".join(
        path.read_text()
        for pattern in (
            "*/commands/doctor/test_*.py",
            "integration/**/test_doctor.py",
            "integration/cli/test_runpod*.py",
        )
        for path in (ROOT / "tests").glob(pattern)
        if path.name != Path(__file__).name
    )
    assert not [what for what in in_the_code() if f'"{what}"' not in tests]
