"""What a second attack tried as the author of a repository: to hang or to break commands that only look at it."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest
from pathspec import GitIgnoreSpec

from gpuops.core.errors import UsageError
from gpuops.core.files import MAX_SMALL_BYTES, read_small
from gpuops.core.settings import MAX_TOML_BYTES, read_dotenv, read_toml
from gpuops.nodes.environment import read_requirements
from gpuops.sync.project_files import IgnoreRules, in_linear_time, list_files, project_files
from tests.conftest import Shell

TABLES = {"run": {"nodes": int, "setup": str, "env": list, "max-hours": float}}
ENDLESS = "0x" + "f" * 5000


@pytest.mark.parametrize("line", [f"nodes = {ENDLESS}", f"setup = {ENDLESS}", f"env = [{ENDLESS}]",
                                  f"max-hours = {ENDLESS}"])  # fmt: skip
def test_a_number_that_python_does_not_write(tmp_path: Path, line: str) -> None:
    (tmp_path / "gpuops.toml").write_text(f"[run]\n{line}\n")
    with pytest.raises(UsageError):
        read_toml(tmp_path / "gpuops.toml", TABLES)


@pytest.mark.timeout(120)
def test_files_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    for name in ("gpuops.toml", ".env", ".gpuopsignore", "requirements.txt"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 50 << 30)
    for read in (
        lambda: read_toml(tmp_path / "gpuops.toml", TABLES),
        lambda: read_dotenv(tmp_path / ".env"),
        lambda: IgnoreRules(tmp_path, ".gpuopsignore").ignores("x"),
        lambda: read_requirements(tmp_path),
    ):
        with pytest.raises(UsageError):
            read()
    (tmp_path / "most").write_bytes(b"x" * MAX_SMALL_BYTES)
    assert len(read_small(tmp_path / "most")) == MAX_SMALL_BYTES


@pytest.mark.timeout(120)
def test_a_dotted_key_as_long_as_a_file_may_be(tmp_path: Path) -> None:
    (tmp_path / "gpuops.toml").write_text(".".join("a" * (MAX_TOML_BYTES // 2 - 4)) + " = 1\n")
    with pytest.raises(UsageError):
        read_toml(tmp_path / "gpuops.toml", TABLES)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no file"):
        read_small(tmp_path / "pipe")


@pytest.mark.parametrize("text", ["[project]\nx = " + "[" * 3000 + "]" * 3000, "[project]\nx = " + "9" * 5000])
def test_requirements_that_no_parser_bears(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError):
        read_requirements(tmp_path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 12 + "b", "a" * 200 + "c"),
        ("*[!b]" * 12 + "b", "a" * 200 + "c"),
        ("*?" * 12 + "b", "a" * 200 + "c"),
        ("**/a/" * 10 + "b", "a/" * 100 + "x"),
        ("x/" + "**/a/" * 10 + "b", "x/" + "a/" * 100 + "x"),
        ("**/*a*a*a*a*/" * 10 + "b", "aaaaaaaaaaaaaa/" * 90 + "x"),
    ],
)
def test_no_pattern_is_slow(tmp_path: Path, pattern: str, path: str) -> None:
    (tmp_path / ".gpuopsignore").write_text(pattern + "\n")
    assert not IgnoreRules(tmp_path, ".gpuopsignore").ignores(path)


@pytest.mark.parametrize(
    "line", ["*a*b", "*a?[ab]*b*", "**/a/**/*b*a*/**/b", "a/**/b/**", "*\\**\\[*b", "/a*b*a/", "*.py"]
)
def test_a_fast_pattern_means_the_same(line: str) -> None:
    (pattern,) = GitIgnoreSpec.from_lines([line]).patterns
    slow = pattern.regex  # type: ignore[attr-defined]
    quick = re.compile(in_linear_time(slow.pattern))
    for length in range(1, 7):
        for letters in itertools.product("ab/*", repeat=length):
            one, other = slow.match("".join(letters)), quick.match("".join(letters))
            assert bool(one) == bool(other)
            assert one is None or other is None or one.groupdict() == other.groupdict()


def test_a_line_that_is_no_pattern_ignores_nothing(tmp_path: Path) -> None:
    (tmp_path / ".gpuopsignore").write_text("[z-a]\n\\\n!\nb\n")
    rules = IgnoreRules(tmp_path, ".gpuopsignore")
    assert (rules.ignores("a"), rules.ignores("b")) == (False, True)


def test_folders_without_end(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("a", dir_fd=here)
        below = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    try:
        with pytest.raises(UsageError, match="deep"):
            project_files(tmp_path)
        with pytest.raises(UsageError, match="deep"):
            list_files(tmp_path, ())
    finally:
        subprocess.run(
            ["rm", "-rf", tmp_path / "a"], check=True
        )  # too deep for Python, and so for pytest's own clearing


def test_a_key_forges_no_line(shell: Shell) -> None:
    shell.write("gpuops.toml", '"a\\nerror: all is well" = 1\n')
    assert "error: all is well" not in shell.run("status").stderr.splitlines()
