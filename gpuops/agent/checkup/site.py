"""The place that mode `checkup` examines: its files below a root, its environment variables, its programs."""

from __future__ import annotations

import os
import subprocess
from typing import Any, Mapping, NamedTuple, Sequence

from gpuops.agent import processes
from gpuops.agent.node import read_text

PROGRAM_LIMIT_S = 20.0
"""Time limit of one program: a GPU driver that wakes up is slow."""
MAX_FILE_CHARACTERS = 1 << 20
"""Characters read of a file."""
EXTRA_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/cuda/bin"
"""Folders searched for programs after those of PATH."""


class ProgramResult(NamedTuple):
    """How a program ended; `code` is None where it does not exist, or did not end in time (`slow`)."""

    code: int | None
    out: str
    err: str
    slow: bool = False


class Site:
    """Reads and runs; changes nothing. A test passes another root to show it another machine."""

    def __init__(self, root: str, environ: Mapping[str, str], limit_s: float) -> None:
        self.root = root
        self.environ = environ
        self.limit_s = limit_s
        self.home = environ.get("HOME") or os.path.expanduser("~")

    def path(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str:
        """A file's text; empty where it cannot be read."""
        return read_text(self.path(path), MAX_FILE_CHARACTERS)

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted; none where it cannot be read."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def which(self, name: str) -> str | None:
        for folder in (self.environ.get("PATH", os.defpath) + os.pathsep + EXTRA_PATH).split(os.pathsep):
            path = os.path.join(folder, name)
            if folder and os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        return None

    def run(
        self,
        argv: Sequence[str],
        limit_s: float | None = None,
        stdin: Any = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
    ) -> ProgramResult:
        """Run a program and capture its output. One that even SIGKILL does not end is left behind."""
        try:
            process = subprocess.Popen(
                list(argv),
                start_new_session=True,
                cwd="/",
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
            )
        except OSError as error:
            return ProgramResult(None, "", error.strerror or str(error))
        output = processes.read_output(process, self.limit_s if limit_s is None else min(limit_s, self.limit_s))
        if output is None:
            return ProgramResult(None, "", "", slow=True)
        out, err = (text.decode("utf-8", "replace") for text in output)
        return ProgramResult(process.returncode, out, err)
