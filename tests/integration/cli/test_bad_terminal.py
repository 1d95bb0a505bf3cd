"""Terminals that are gone, closed, narrow or speak another alphabet: the same words and codes, never a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from tests.conftest import HANG_S, Shell

G = f"{sys.executable} -m gpuops"
NOT_THERE = "error: there is no live cluster named nope\nhint: live clusters: there is none\n"
PLAIN = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


@dataclass(frozen=True)
class Row:
    """`line` is typed in bash; `out` and `err` are patterns for what is read of it."""

    what: str
    line: str
    code: int
    out: str = ""
    err: str = ""
    env: dict[str, str] = field(default_factory=dict)


NEW_HOME = r"note: \S+ is a new home, and knows of nothing that another one brought up: gpuops status --cloud\n"

ROWS = [
    Row("nobody types", f"{G} status <&-", 0, "nothing is up\n", NEW_HOME),
    Row("nobody answers", f"{G} down nope <&-", 2, "", re.escape(NOT_THERE)),
    Row("nobody reads", f"{G} status >&-", 0, "", NEW_HOME),
    Row("nobody reads a document", f"{G} status --json >&-", 0, "", NEW_HOME),
    Row("nobody reads the help", f"{G} --help >&-", 0),
    Row("nobody hears", f"{G} down nope 2>&-", 2),
    Row("nobody is there", f"{G} down nope <&- >&- 2>&-", 2),
    Row("the reader has gone", f"{G} push --dry-run | true; exit ${{PIPESTATUS[0]}}", 0),
    Row("a full disk behind the pipe", f"{G} push --dry-run >/dev/full", 0),
    Row("help on a full disk", f"{G} train --help >/dev/full", 4, "",
        "error: this computer cannot write: .*No space left on device\nhint: free some space, then try again\n"),
    Row("a plain alphabet", f"{G} push --dry-run", 0, r"would send: 1 file, 2 B\n  .*\.py'?\n", env=PLAIN),
    Row("a narrow alphabet", f"{G} down läb", 2, "", r"error: there is no live cluster named l.*b\nhint: .*\n",
        {"PYTHONIOENCODING": "ascii"}),
    Row("a western alphabet", f"{G} push --dry-run | iconv -f latin1 -t utf-8", 0,
        r"would send: 1 file, 2 B\n  ü ö\.py\n", env={"PYTHONIOENCODING": "latin-1"}),
    Row("a dumb terminal, 20 wide", f"{G} down nope", 2, "", re.escape(NOT_THERE),
        {"TERM": "dumb", "COLUMNS": "20"}),
    Row("no terminal, a width that is none", f"{G} down nope", 2, "", re.escape(NOT_THERE),
        {"TERM": "", "COLUMNS": "wide"}),
    Row("an option before the provider", f"{G} up --nope", 2, "",
        "error: there is no option --nope\nhint: the provider comes first, such as: gpuops up local\n"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_the_same_words_and_codes(shell: Shell, row: Row) -> None:
    shell.write("ü ö.py", "x\n")
    done = subprocess.run(["bash", "-c", row.line], cwd=shell.folder, env={**shell.environment(), **row.env},
                          capture_output=True, timeout=HANG_S, check=False)  # fmt: skip
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    assert done.returncode == row.code, (out, err)
    assert re.fullmatch(row.out, out), (out, err)
    assert re.fullmatch(row.err, err), (out, err)
    assert not list(shell.home.glob("bug-*"))
