"""The end of a node, by its watchdog."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import HANG_S, until

END = """
import os, resource, sys
from gpuops.agent.node import Node
from gpuops.agent.daemon.watchdog import Watchdog
os.chdir(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
Watchdog(Node(sys.argv[1]))._end_node("nothing was run on it")
"""
"""On a disk that takes no byte: neither `ended.json` nor a line of the log can be written."""


def test_a_full_disk_keeps_no_machine_alive(tmp_path: Path) -> None:
    """Snapshots fill a disk more often than anything else does, and an idle machine has nobody but its watchdog."""
    (tmp_path / "node.json").write_text(json.dumps({"end": ["touch", str(tmp_path / "over")]}))
    with (tmp_path / "watchdog.log").open("wb") as log:
        subprocess.run([sys.executable, "-c", END, tmp_path], stderr=log, check=False, timeout=HANG_S)
    assert (tmp_path / "over").exists()


ALONE = """
import os, sys
from gpuops.agent.node import Node
from gpuops.agent.daemon.watchdog import Watchdog
os.chdir(sys.argv[1])
Watchdog(Node(sys.argv[1])).watch()
"""


@pytest.mark.parametrize("lease", [{"hard_wall": 1.0}, {"idle_s": 60.0}], ids=["hard end", "idle end"])
def test_a_node_ends_though_no_agent_can_be_started(tmp_path: Path, lease: dict[str, float]) -> None:
    """Nor does the run count that was on when the last agent died, since nobody can note its end."""
    (tmp_path / "node.json").write_text(json.dumps({"end": ["touch", str(tmp_path / "over")]}))
    (tmp_path / "lease.json").write_text(json.dumps(lease))
    (tmp_path / "live.json").write_text(json.dumps({"run": "r"}))
    (tmp_path / "agent.log").mkdir()  # where the disk has no room for a file, it cannot be opened either
    subprocess.run([sys.executable, "-c", ALONE, tmp_path], check=False, timeout=HANG_S)
    assert (tmp_path / "over").exists()


REPEAT = """
import os, sys
from gpuops.agent.daemon import watchdog
from gpuops.agent.node import Node
os.chdir(sys.argv[1])
watchdog.END_RETRY_INTERVAL_S = 0.05
watchdog.Watchdog(Node(sys.argv[1]))._end_node("nothing was run on it")
"""


def test_what_does_not_end_the_machine_is_run_again_until_it_does(tmp_path: Path) -> None:
    """Nobody else ends a machine whose lease has no hard end, or a far one; what came with it is told all the same."""
    tries = tmp_path / "tries"
    again = f'echo x >>"{tries}"; test "$(wc -l <"{tries}")" -ge 6'
    node = {"end": ["sh", "-c", again], "boot_watch": str(tmp_path)}
    (tmp_path / "node.json").write_text(json.dumps(node))
    with (tmp_path / "watchdog.log").open("wb") as log:
        subprocess.run([sys.executable, "-c", REPEAT, tmp_path], stderr=log, check=True, timeout=HANG_S)
    assert tries.read_text() == "x\n" * 6
    assert abs(int((tmp_path / "end").read_text()) - 120 - time.time()) < HANG_S


def test_who_ends_the_node_ends_that(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"end": ["false"]}))
    with (tmp_path / "watchdog.log").open("wb") as log:
        running = subprocess.Popen([sys.executable, "-c", REPEAT, tmp_path], stderr=log)
    try:
        until(lambda: (tmp_path / "watchdog.log").read_text().count("exit code 1") > 3, "it tries again and again")
        running.terminate()
        assert running.wait(HANG_S) == 0
    finally:
        running.kill()


REMOVED = """
import os, shutil, signal, sys
from gpuops.agent.node import Node
from gpuops.agent.daemon.watchdog import Watchdog
os.chdir(sys.argv[1])
watchdog = Watchdog(Node(sys.argv[1]))
shutil.rmtree(sys.argv[1])
os.makedirs(sys.argv[1])
if sys.argv[2:]:
    os.kill(os.getpid(), signal.SIGTERM)
watchdog.watch()
"""
"""With a word behind the folder: `end` has told the watchdog, and removed the folder."""


@pytest.mark.parametrize("is_told", [False, True], ids=["by a script", "by end"])
def test_a_machine_whose_folder_was_removed_ends(tmp_path: Path, is_told: bool) -> None:
    """A script removes what it takes for rubbish, and the machine would bill until its lease ends."""
    folder, boot = tmp_path / "n0", tmp_path / "boot"
    for path in (folder, boot):
        path.mkdir()
    (folder / "node.json").write_text(json.dumps({"end": ["touch", str(tmp_path / "over")], "boot_watch": str(boot)}))
    end = int(time.time()) + 3600
    (folder / "lease.json").write_text(json.dumps({"hard_wall": end}))
    command = [sys.executable, "-c", REMOVED, folder, *(["told"] if is_told else [])]
    subprocess.run(command, check=True, timeout=HANG_S)
    assert (tmp_path / "over").exists() != is_told
    boot_ends = [int(path.read_text()) for path in boot.iterdir()]
    assert len(boot_ends) == (not is_told)
    assert all(one < end for one in boot_ends), "not by the lease, which goes on for an hour"
    assert list(folder.iterdir()) == [], "what was made in its place is another's"
