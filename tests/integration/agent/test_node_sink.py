"""Results kept on a volume: all of them, read back, and only then is a node done with; whoever dies on the way."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import NodeRefused
from tests.files import change
from tests.integration.agent.conftest import RealNode, alive, until

MAKES = (
    "import os; os.makedirs('checkpoints/a b'); open('checkpoints/a b/ü.pt', 'wb').write(os.urandom(3000000));"
    "open('notes.txt', 'w').write('by hand'); os.mkfifo('pipe.pt'); os.symlink('notes.txt', 'link.pt'); print('made')"
)
HOLD = {"hold_s": 600}


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


def sink(volume: Path, *, end: bool = False, by: str = "0a1b") -> dict[str, Any]:
    return {"folder": str(volume / "gpuops" / "r-1"), "end": end, "id": by}


def state(node: RealNode, run: str = "r-1") -> Any:
    return node.says("run", run=run)["ok"]["sink"]


def settled(node: RealNode) -> Any:
    return until(lambda: (found := state(node)) and found["state"] in ("safe", "failed") and found, "an end to copying")


def ends_with(node: RealNode, command: list[str]) -> None:
    """The node's own end, as its provider would have given it."""
    change(node.folder / "node.json", end=command)


def why_ended(node: RealNode) -> str:
    path = node.folder / "ended.json"
    until(path.exists, "the node has ended")
    return str(json.loads(path.read_text())["why"])


def kept(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_everything_that_a_client_would_fetch_is_kept_and_proven(node: RealNode, volume: Path) -> None:
    node.python("r-1", MAKES, sink=sink(volume), **HOLD)
    assert settled(node)["state"] == "safe"
    place = volume / "gpuops/r-1/node0"
    files = kept(place)
    project = node.folder / "project"
    assert files["out/checkpoints/a b/ü.pt"] == (project / "checkpoints/a b/ü.pt").read_bytes()
    assert files["out/notes.txt"] == files["out/link.pt"] == b"by hand", "no pattern names the first"
    assert files["logs/launcher.out"] == b"made\n"
    assert json.loads(files["result.json"])["outcome"] == "done"
    assert "out/pipe.pt" not in files
    safe = json.loads(files["safe.json"])
    assert {name: sha for name, _, sha in safe["files"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name not in ("safe.json", "run.json")
    }
    assert (place / "out/notes.txt").stat().st_mtime_ns == (project / "notes.txt").stat().st_mtime_ns
    until((node.folder / "runs/r-1/home.json").exists, "nobody need fetch it any more")
    assert b'"event": "safe"' in node.file("r-1", "events.jsonl")


def test_a_run_that_fails_is_kept_as_well(node: RealNode, volume: Path) -> None:
    node.python("r-1", "import sys; open('a.pt', 'w').close(); sys.exit('no')", sink=sink(volume))
    assert settled(node)["state"] == "safe"
    files = kept(volume / "gpuops/r-1/node0")
    assert files["logs/launcher.err"] == b"no\n"
    assert "out/a.pt" in files


def test_without_a_volume_nothing_is_started(node: RealNode, volume: Path) -> None:
    volume.rmdir()
    with pytest.raises(NodeRefused) as refused:
        node.start("r-1", ["true"], sink=sink(volume))
    assert refused.value.kind == "sink"
    assert refused.value.message.endswith("gpuops/r-1 cannot keep this run's results: No such file or directory")
    assert not volume.exists()
    node.start("r-1", ["true"])
    assert node.result("r-1")["outcome"] == "done", "the name is free"


def test_anothers_results_of_the_same_name_stay(node: RealNode, volume: Path) -> None:
    theirs = volume / "gpuops" / "r-1" / "node0" / "out" / "model.pt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    node.python("r-1", "open('model.pt', 'w').write('ours')", sink=sink(volume))
    assert settled(node)["folder"] == str(volume / "gpuops/r-1-0a1b")
    assert (volume / "gpuops/r-1-0a1b/node0/out/model.pt").read_text() == "ours"
    assert theirs.read_text() == "theirs"
    assert sorted(path.name for path in (volume / "gpuops/r-1").iterdir()) == ["node0"]


@pytest.fixture
def small(tmp_path: Path) -> Any:
    """A volume of 1 MB."""
    folder = tmp_path / "volume"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=False).returncode:
        pytest.skip("needs to mount (root)")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_on_a_full_volume_the_node_waits_for_its_user(node: RealNode, small: Path) -> None:
    node.python("r-1", MAKES, sink=sink(small, end=True), **HOLD)
    found = settled(node)
    assert (found["state"], found["why"]) == ("failed", "No space left on device, 1 file")
    until(lambda: b'"event": "unsafe"' in node.file("r-1", "events.jsonl"), "that is noted")
    assert "safe.json" not in kept(small / "gpuops/r-1/node0")
    client = node.client()
    client.call("lease", ends_in=None, idle_s=0.5)
    client.close()
    time.sleep(5.0)
    assert not (node.folder / "ended.json").exists()


def test_a_node_of_the_runs_own_ends_when_nobody_is_there(node: RealNode, volume: Path, tmp_path: Path) -> None:
    ends_with(node, ["touch", str(tmp_path / "off")])
    node.python("r-1", MAKES, sink=sink(volume, end=True), **HOLD)
    node.connection.close()
    assert why_ended(node) == f"its results are safe in {volume}/gpuops/r-1"
    until((tmp_path / "off").exists, "the machine was ended")
    assert (volume / "gpuops/r-1/node0/safe.json").exists()


def test_somebody_who_is_connected_sees_to_it_themselves(node: RealNode, volume: Path) -> None:
    client = node.client()
    node.python("r-1", "pass", sink=sink(volume, end=True), **HOLD)
    settled(node)
    time.sleep(5.0)
    assert client.call("ping")
    assert not (node.folder / "over.json").exists()
    client.close()
    assert why_ended(node).startswith("its results are safe in ")


def test_nodes_of_one_run_wait_for_each_other(make_node: Callable[..., RealNode], volume: Path) -> None:
    one, other = make_node(0), make_node(1)
    one.python("r-1", "pass", nodes=2, sink=sink(volume, end=True))
    until((volume / "gpuops/r-1/node0/safe.json").exists, "the first is safe")
    time.sleep(4.0)
    assert not (one.folder / "over.json").exists()
    other.python("r-1", "pass", nodes=2, node=1, sink=sink(volume, end=True))
    assert why_ended(one) == why_ended(other) == f"its results are safe in {volume}/gpuops/r-1"
    assert (volume / "gpuops/r-1/node1/safe.json").exists()


@pytest.mark.parametrize("what", ["agent", "watchdog"])
def test_whoever_dies_the_results_are_kept(node: RealNode, volume: Path, what: str) -> None:
    """A run that its agent's death has ended, too: the next agent keeps what it left, and ends the node."""
    node.python(
        "r-1", "open('a.pt', 'w').write('half'); import time; time.sleep(600)", sink=sink(volume, end=True), **HOLD
    )
    made = node.folder / "project/a.pt"
    until(lambda: made.exists() and made.read_text() == "half", "it runs")
    killed = node.process(what)
    os.kill(killed, signal.SIGKILL)
    until(lambda: not alive(killed), "it is gone")
    assert why_ended(node) == f"its results are safe in {volume}/gpuops/r-1"
    files = kept(volume / "gpuops/r-1/node0")
    assert files["out/a.pt"] == b"half"
    assert json.loads(files["result.json"])["reason"]["kind"] == what
