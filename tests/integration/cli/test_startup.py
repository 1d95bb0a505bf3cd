"""What the command line loads before it says who it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuops import __version__
from tests.unit.test_imports import HEAVY


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_to_say_who_it_is_it_loads_nothing_heavy(flag: str) -> None:
    code = (
        "import sys\nfrom gpuops.cli import main\n"
        f"try: main(['{flag}'])\n"
        "except SystemExit as end: code = end.code\n"
        f"heavy = [name for name in {sorted(HEAVY | {'typer', 'msgspec', 'rich.table', 'rich.progress'})} "
        "if name in sys.modules]\n"
        "sys.exit(code or ' '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version() -> None:
    done = subprocess.run([sys.executable, "-m", "gpuops", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"gpuops {__version__}\n"
