"""A command typed with a fake for its provider: `python -m tests.fakes.NAME [--lab] COMMAND`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def typed(argv: list[str], manual: str | None, make: Callable[..., Any], told: Callable[[Any], Iterable[str]]) -> int:
    """The command's exit code. `make` takes a folder and `lab`; `told`: what is said of the fake at the end."""
    with_lab = argv[:1] == ["--lab"]
    command = argv[1:] if with_lab else argv
    if not command:
        sys.exit(manual)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fake-")))
        lab = None
        if with_lab:
            from tests.system.lab.hosts import Lab

            lab = stack.enter_context(Lab(folder / "lab"))
        fake = stack.enter_context(make(folder / "provider", lab=lab))
        try:
            code = subprocess.run([*(lab.enter if lab else []), *command], env={**os.environ, **fake.env}).returncode
        except FileNotFoundError:
            sys.exit(f"there is no command {command[0]}\n\n{manual}")
        for line in told(fake):
            print(line, file=sys.stderr)
    return code
