"""`make proof`: the command line killed at many random moments. Nothing may be left, no result lost."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Shell, until

pytestmark = pytest.mark.proof

KILLS = int(os.environ.get("GPUOPS_PROOF_KILLS", "150"))
LINES = 200
SCRIPT = f"""
import time
side = open("{{side}}", "w")
for number in range({LINES}):
    line = f"line {{{{number}}}}"
    print(line, flush=True)
    side.write(line + chr(10)); side.flush()
    time.sleep(0.01)
open("made.pt", "w").write("made")
"""


@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_at_a_random_moment(shell: Shell, tmp_path: Path, seed: int) -> None:
    side = tmp_path / "side.txt"
    shell.write("work.py", SCRIPT.format(side=side))
    process = shell.start("run", "--nodes", "2", "--", "python3", "work.py")
    delay = random.Random(seed).uniform(0.0, 8.0)
    try:
        process.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shell.run("status")
    until(lambda: shell.is_clean() and not shell.cluster_states(), f"nothing left after a kill at {delay:.2f} s")
    log = shell.folder / "runs/python3-1/logs/node0/launcher.out"
    written = side.read_text() if side.exists() else ""
    assert (log.read_text() if log.exists() else "") == written
    if len(written.splitlines()) == LINES:
        assert (shell.folder / "runs/python3-1/out/made.pt").read_text() == "made"
