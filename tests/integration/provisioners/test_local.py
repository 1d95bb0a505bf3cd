"""Local nodes whose notes lie: a number that another process has by now, an agent that was deleted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.agent import process_table
from gpuops.core.provider import Context
from gpuops.nodes import bootstrap
from provisioners.local.processes import is_watchdog_alive, start_node, start_time_of
from provisioners.local.provisioner import LocalProvisioner


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_number_that_another_process_has_is_no_watchdog(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    found = process_table.find_process(sleeper.pid)
    assert found
    assert start_time_of(sleeper.pid) == found.start
    note = tmp_path / "watchdog.json"
    note.write_text(json.dumps({"pid": sleeper.pid, "start": found.start}))
    assert is_watchdog_alive(tmp_path)
    for start in ("1", "", None):
        note.write_text(json.dumps({"pid": sleeper.pid, "start": start}))
        assert not is_watchdog_alive(tmp_path)
    note.write_text(json.dumps({"pid": sleeper.pid}))
    assert not is_watchdog_alive(tmp_path)


def test_what_another_process_is_now_is_not_ended(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    provisioner = LocalProvisioner(Context("0a1b2c3d", tmp_path, {}))
    folder = provisioner.root / "lab" / "n0"
    folder.mkdir(parents=True)
    (folder / "watchdog.json").write_text(json.dumps({"pid": sleeper.pid, "start": "1"}))
    provisioner.destroy(provisioner.list_owned("0a1b2c3d", []))
    assert not folder.exists()
    assert sleeper.poll() is None


def test_a_node_whose_agent_was_deleted_is_ended_before_its_folder_goes(tmp_path: Path) -> None:
    provisioner = LocalProvisioner(Context("0a1b2c3d", tmp_path, {}))
    agent = provisioner._install(bootstrap.build_agent(tmp_path / "cache")[0])
    folder = provisioner.root / "lab" / "n0"
    folder.mkdir(parents=True)
    start_node(agent, folder, {"node": {"cluster": "lab", "owner": "0a1b2c3d"}, "lease": {"boot_in": 600.0}})
    pids = [json.loads((folder / f"{name}.json").read_text())["pid"] for name in ("watchdog", "agent")]
    shutil.rmtree(agent.parent)
    provisioner.destroy(provisioner.list_owned("0a1b2c3d", []))
    assert not any(process_table.find_process(pid) for pid in pids), (
        "they are gone first, not some time after their folder"
    )
    assert not folder.exists()
    assert os.listdir(provisioner.root) in ([], ["lab"])
