"""A machine becomes a node: what a look at it tells, and the agent put there, by a shell of this machine."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuops.core.errors import NodeError, NodeRefused
from gpuops.nodes import bootstrap
from gpuops.transport.connection import ProcessConnection
from tests.conftest import HANG_S

GOOD = "home /root\npython /usr/bin/python3\nfree_kb 9000000\n"


def test_a_look_tells_what_is_there() -> None:
    assert bootstrap.parse_probe(GOOD, "box") == bootstrap.MachineProbe("/root", "/usr/bin/python3", 0)
    assert bootstrap.parse_probe(GOOD + "gpus 4\n", "box").gpus == 4
    assert bootstrap.parse_probe("home /a b\nold /usr/bin/python3 is Python 3.6\npython /opt/p\nfree_kb \n", "box") == (
        bootstrap.MachineProbe("/a b", "/opt/p")
    )


@pytest.mark.parametrize(
    ("text", "say", "hint"),
    [
        ("home /root\n", "box has no Python 3.8 or later", "install python3 on box"),
        (
            "home /root\nold /usr/bin/python3 is Python 3.6\n",
            "box has no Python 3.8 or later (/usr/bin/python3 is Python 3.6)",
            "install python3 on box",
        ),
        (GOOD + "unwritable /root\n", "the home folder /root of box cannot be written", "log in as another user"),
        (
            "home /h\npython /p\nfree_kb 12\n",
            "box has 0 MB of free disk, at least 50 MB are needed",
            "free some space under /h there",
        ),
        ("", "box has no Python 3.8 or later", "install python3 on box"),
    ],
)
def test_what_cannot_become_a_node_is_one_sentence(text: str, say: str, hint: str) -> None:
    with pytest.raises(NodeError) as error:
        bootstrap.parse_probe(text, "box")
    assert (error.value.message, error.value.hint) == (say, hint)


def test_a_look_at_this_machine() -> None:
    found = bootstrap.probe_machine(ProcessConnection("here"))
    assert Path(found.home) == Path(os.environ["HOME"])
    assert Path(found.python).exists()


def test_the_agent_is_brought_once_and_a_node_begins(tmp_path: Path) -> None:
    root = tmp_path / "a root"
    connection = ProcessConnection("here")
    agent, sha = bootstrap.build_agent(tmp_path / "cache")
    path = bootstrap.install_agent(connection, str(root), agent)
    assert Path(path).read_bytes() == agent.read_bytes()
    before = Path(path).stat()
    assert bootstrap.install_agent(connection, str(root), agent) == path
    assert Path(path).stat().st_mtime_ns == before.st_mtime_ns
    assert [one.name for one in (root / "agent").iterdir()] == [f"{sha}.pyz"]

    folder = root / "lab" / "n0"
    node = {"cluster": "lab", "owner": "0badcafe", "index": 0, "mark": "gpuops-0badcafe-lab-0", "token": "t-0",
            "end": None, "gpus": None, "artefact": sha, "host": "here"}  # fmt: skip
    document = {"node": node, "lease": {"boot_in": 600.0}}
    bootstrap.start_node(connection, sys.executable, str(root), agent, str(folder), document)
    nodes = [sys.executable, "-I", path, "nodes", "--root", str(root), "--host"]
    (seen,) = bootstrap.call_agent_mode(connection, [*nodes, "here"]).nodes
    assert (seen["mark"], seen["state"], seen["folder"]) == (node["mark"], "running", str(folder))
    assert bootstrap.call_agent_mode(connection, [*nodes, "another host that shares the home"]).nodes == []
    with pytest.raises(NodeRefused) as refused:
        bootstrap.init(connection, sys.executable, path, str(folder), {**document, "node": {**node, "token": "other"}})
    assert refused.value.kind == "foreign"

    end = [sys.executable, "-I", path, "end", "--node", str(folder), "--remove", "--root"]
    bootstrap.call_agent_mode(connection, end)
    assert not root.exists(), "nothing is left of us"
    connection.close()


def test_an_agent_comes_with_the_step_that_starts_a_node(tmp_path: Path) -> None:
    root = tmp_path / "a root"
    agent, sha = bootstrap.build_agent(tmp_path / "cache")
    node = {"cluster": "lab", "owner": "0badcafe", "index": 0, "mark": "gpuops-0badcafe-lab-0", "token": "it's $HOME",
            "end": None, "gpus": None, "artefact": sha, "host": "here"}  # fmt: skip
    folder = root / "lab" / "n0"
    connection = ProcessConnection("here")
    bootstrap.start_node(
        connection, sys.executable, str(root), agent, str(folder), {"node": node, "lease": {"boot_in": 600.0}}
    )
    assert json.loads((folder / "node.json").read_text())["token"] == "it's $HOME", "no shell has read it"
    path = root / "agent" / agent.name
    assert path.read_bytes() == agent.read_bytes()
    end = [sys.executable, "-I", str(path), "end", "--node", str(folder), "--remove", "--root"]
    bootstrap.call_agent_mode(connection, end)
    assert not root.exists()


def test_where_there_is_no_gzip_python_unpacks_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "mkdir", "mktemp", "mv", "rm", "wc", "cat"):
        (tools / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(tools))
    agent, _ = bootstrap.build_agent(tmp_path / "cache")
    connection = ProcessConnection("here")
    with pytest.raises(NodeError, match="the agent cannot be put on here: neither gzip nor a Python is there"):
        bootstrap.install_agent(connection, str(tmp_path / "root"), agent)
    assert [*(tmp_path / "root" / "agent").iterdir()] == [], "no draft is left"
    path = bootstrap.install_agent(connection, str(tmp_path / "root"), agent, sys.executable)
    assert Path(path).read_bytes() == agent.read_bytes()


def test_a_node_whose_folder_cannot_be_made_is_said(tmp_path: Path) -> None:
    agent, _ = bootstrap.build_agent(tmp_path / "cache")
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeError, match=r"the agent cannot be put on here: mkdir: .*Not a directory"):
        bootstrap.start_node(
            ProcessConnection("here"), sys.executable, str(tmp_path / "file"), agent, str(tmp_path / "file/n0"), {}
        )


def test_an_agent_of_which_a_power_cut_kept_the_name_is_brought_again(tmp_path: Path) -> None:
    agent, _ = bootstrap.build_agent(tmp_path / "cache")
    path = Path(bootstrap.install_agent(ProcessConnection("here"), str(tmp_path / "root"), agent))
    path.write_bytes(b"")
    bootstrap.install_agent(ProcessConnection("here"), str(tmp_path / "root"), agent)
    assert path.read_bytes() == agent.read_bytes()


@pytest.mark.parametrize("lost", [1, 9, 5000])
@pytest.mark.parametrize("more", [(), ("touch", "started")])
def test_half_an_agent_is_none(tmp_path: Path, lost: int, more: Sequence[str]) -> None:
    """A connection that is cut ends the input of what runs on the machine. The newest agent there lists all nodes."""
    agent, sha = bootstrap.build_agent(tmp_path / "cache")
    content, folder = agent.read_bytes(), tmp_path / "root/agent"
    words = ["sh", "-c", bootstrap.INSTALL_SCRIPT, "sh", folder, f"{sha}.pyz", str(len(content)), sys.executable, *more]
    done = subprocess.run(
        words, input=b"{}\n" + gzip.compress(content)[:-lost], capture_output=True, timeout=HANG_S, cwd=tmp_path
    )
    assert done.stdout.startswith(b"not put there\n")
    assert [*folder.iterdir()] == []
    assert not (tmp_path / "started").exists()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, _ = bootstrap.build_agent(tmp_path / "cache")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("draft", str(tmp_path / "file"))
    monkeypatch.setenv("done", "yes")
    with pytest.raises(NodeError, match=r"the agent cannot be put on here: mkdir: .*Not a directory"):
        bootstrap.install_agent(ProcessConnection("here"), str(tmp_path / "file"), agent)
    assert (tmp_path / "file").exists(), "a variable of the user's own is no file of ours"


def test_tidying_takes_what_is_ours_alone(tmp_path: Path) -> None:
    agent, _ = bootstrap.build_agent(tmp_path / "cache")
    root = tmp_path / "root"
    connection = ProcessConnection("here")
    bootstrap.install_agent(connection, str(root), agent)
    (root / "lab").mkdir()
    bootstrap.remove_agent(connection, str(root))
    assert sorted(path.name for path in root.iterdir()) == ["agent", "lab"], "a node is there, or may be"
    (root / "lab").rmdir()
    bootstrap.remove_agent(connection, str(root))
    bootstrap.remove_agent(connection, str(root))
    assert not root.exists()


def test_tidying_takes_what_an_end_has_left(tmp_path: Path) -> None:
    root, beside = tmp_path / ".gpuops-0badcafe", tmp_path / ".gpuops-0badcafe-2.gone-7"
    for folder in (tmp_path / ".gpuops-0badcafe.gone-7" / "env" / "large", root / "data" / "n0", beside):
        folder.mkdir(parents=True)
    (root / "data" / "n0" / "node.json").write_text("{}")
    bootstrap.remove_agent(ProcessConnection("here"), str(root))
    assert sorted(tmp_path.iterdir()) == [root, beside], "a node is there, of a cluster called data"
    (root / "data" / "n0" / "node.json").unlink()
    bootstrap.remove_agent(ProcessConnection("here"), str(root))
    assert [*tmp_path.iterdir()] == [beside]


def test_a_program_that_says_something_else_is_said() -> None:
    with pytest.raises(NodeError, match="here gave no answer but 'login banner'"):
        bootstrap.call_agent_mode(ProcessConnection("here"), ["echo", json.dumps({})[:-1] + "\nlogin banner"])
