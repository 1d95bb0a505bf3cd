"""What tests/unit/agent/test_image_variables.py leaves to real processes or sockets."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuops.agent.daemon import image_variables
from tests.unit.agent.test_image_variables import ENV, OTHERS, adopted, first, node


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine whose first process has the image's environment, and the provider's."""
    first(tmp_path / "proc", "bash", {**ENV, **OTHERS})
    return tmp_path / "proc"


def test_a_login_reads_the_same(tmp_path: Path, proc: Path) -> None:
    one = node(tmp_path / "lab" / "n0", rented=True)
    adopted(one, proc)
    said = subprocess.run(
        ["/bin/sh", "-c", '. "$1"; env -0', "sh", one.path(image_variables.SCRIPT)],
        env={"PATH": "/usr/bin:/login"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    seen = dict(line.split("=", 1) for line in said.split("\0") if line)
    assert {name: seen.get(name) for name in ENV} == {**ENV, "PATH": "/usr/local/cuda/bin:/usr/bin:/usr/bin:/login"}
    assert seen.keys().isdisjoint(OTHERS.keys() - {"HOME", "TERM"})
