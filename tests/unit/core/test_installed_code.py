"""Whether the code that a process began with is still the one that is installed."""

from __future__ import annotations

import os
from pathlib import Path

from gpuops.core import installed_code


def test_an_upgrade_in_place_shows(tmp_path: Path) -> None:
    """By size and date; what Python compiles beside the code changes nothing."""
    code = tmp_path / "provisioners" / "runpod" / "pods.py"
    code.parent.mkdir(parents=True)
    code.write_text("x = 1\n")
    before = installed_code._digest(tmp_path)
    (code.parent / "__pycache__").mkdir()
    (code.parent / "__pycache__" / "pods.cpython-311.pyc").write_bytes(b"x")
    assert installed_code._digest(tmp_path) == before
    os.utime(code, (1.0, 1.0))
    dated = installed_code._digest(tmp_path)
    code.write_text("x = 12\n")
    os.utime(code, (1.0, 1.0))
    assert len({before, dated, installed_code._digest(tmp_path)}) == 3


def test_this_process_has_a_place() -> None:
    mine = installed_code.installed_code()
    assert (Path(mine.folder) / "gpuops" / "core").is_dir()
    assert not mine.is_outdated(mine)
