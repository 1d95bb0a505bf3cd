"""What tests/unit/core/test_home.py leaves to real processes or sockets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuops.core.home import owner


def test_of_many_at_once_the_first_decides(tmp_path: Path) -> None:
    program = "import sys, pathlib; from gpuops.core.home import owner; print(owner(pathlib.Path(sys.argv[1])))"
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    answers = {process.communicate()[0].strip() for process in started}
    assert answers == {owner(tmp_path)}
    assert [path.name for path in tmp_path.iterdir()] == ["owner"]
