"""The end of a node, by its watchdog."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import HANG_S

END = """
import os, resource, sys
from gpuops.agent.node import Node
from gpuops.agent.watchdog import Watchdog
os.chdir(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
Watchdog(Node(sys.argv[1]))._end("nothing was run on it")
"""
"""On a disk that takes no byte: neither `ended.json` nor a line of the log can be written."""


def test_a_full_disk_keeps_no_machine_alive(tmp_path: Path) -> None:
    """Snapshots fill a disk more often than anything else does, and an idle machine has nobody but its watchdog."""
    (tmp_path / "node.json").write_text(json.dumps({"end": ["touch", str(tmp_path / "over")]}))
    with (tmp_path / "watchdog.log").open("wb") as log:
        subprocess.run([sys.executable, "-c", END, tmp_path], stderr=log, check=False, timeout=HANG_S)
    assert (tmp_path / "over").exists()
