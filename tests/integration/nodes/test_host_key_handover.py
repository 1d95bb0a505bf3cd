"""The script that makes a machine's own host key, run by a shell in a folder that stands for /etc/ssh."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpuops.nodes.host_key_handover import MAKE_KEY_SCRIPT, identify_ssh_folder


def test_a_machine_that_is_this_computer_is_not_changed(tmp_path: Path) -> None:
    script = MAKE_KEY_SCRIPT.replace("/etc/ssh", str(tmp_path))

    def run(asker: str) -> str:
        done = subprocess.run(
            ["sh", "-c", script, "sh", asker], capture_output=True, text=True, timeout=600, check=True
        )
        return done.stdout

    assert run(identify_ssh_folder(tmp_path)) == "this computer\n"
    assert list(tmp_path.iterdir()) == []
    for another in ("", identify_ssh_folder(tmp_path.parent)):
        assert run(another).startswith("key ssh-ed25519 ")
    assert {path.name for path in tmp_path.iterdir()} == {"gpuops_new_key", "gpuops_new_key.pub"}
