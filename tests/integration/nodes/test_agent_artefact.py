"""What tests/unit/nodes/test_agent_artefact.py leaves to real processes or sockets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.nodes import bootstrap


@pytest.mark.parametrize("arguments", [[], ["juggle"], ["connect"], ["rank", "--node-run"], ["init", "--node", "/x"]])
def test_wrong_use_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    agent, _ = bootstrap.build_agent(tmp_path)
    argv = [sys.executable, "-I", str(agent), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, input="no json", timeout=600, check=False)
    assert done.returncode == 1
    assert json.loads(done.stderr)["error"]["kind"] == "usage"
