"""Where a run begins, after others on the same nodes: never at different places, and never without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Shell
from tests.integration.cli.counting import MEETS

SCRIPT = MEETS + (
    "import pathlib\n"
    "rank, snapshot = os.environ['RANK'], pathlib.Path('snapshot.pt')\n"
    "begin = int(snapshot.read_text()) if snapshot.exists() else 0\n"
    "print('begins at', begin)\n"
    "rank == '0' and snapshot.write_text(str(begin + 10))\n"
)
FIRST = ("train", "multigpu", "--gpus", "1", "a.py")
BOTH = ("train", "multinode", "--nodes", "2", "--gpus", "1")


@pytest.fixture
def lab(shell: Shell) -> Shell:
    """A live cluster of one machine, and a script of which rank 0 alone saves a snapshot."""
    shell.write("a.py", SCRIPT)
    up = shell.run("up", "local", "--name", "lab")
    assert up.returncode == 0, up.stderr
    return shell


def begins(shell: Shell, *words: str) -> tuple[set[str], list[str]]:
    """Where the ranks of a run say that they begin, and what gpuops says of it."""
    done = shell.run(*words)
    assert done.returncode == 0, done.stderr + done.stdout
    said = [line for line in done.stderr.splitlines() if "afresh" in line or "every node" in line]
    return {line.rpartition("] ")[2] for line in done.stdout.splitlines()}, said


def snapshot(shell: Shell, node: int) -> Path:
    return shell.home / f"local/lab/n{node}/project/snapshot.pt"


def test_all_ranks_begin_where_the_latest_run_ended(lab: Shell) -> None:
    assert begins(lab, *FIRST) == ({"begins at 0"}, [])
    now = "now on every node, to go on from; start afresh: --fresh"
    assert begins(lab, *BOTH, "a.py") == ({"begins at 10"}, [f"snapshot.pt of a-1 lay on node0 alone: {now}"])
    assert (snapshot(lab, 0).read_text(), snapshot(lab, 1).read_text()) == ("20", "10"), "rank 0 alone saved"
    assert begins(lab, *BOTH, "a.py") == ({"begins at 20"}, [f"snapshot.pt of a-2 lay on node0 alone: {now}"])


def test_fresh_begins_anew_and_loses_nothing(lab: Shell) -> None:
    begins(lab, *BOTH, "a.py")
    home = lab.folder / "runs/a-1/out/snapshot.pt"
    home.unlink()  # it is fetched before it is taken off the node
    assert begins(lab, *BOTH, "--fresh", "a.py") == (
        {"begins at 0"}, ["starts afresh: snapshot.pt of a-1 taken off the nodes; all of it is home"]
    )  # fmt: skip
    assert home.read_text() == "10"
    refused = lab.run(*BOTH, "--fresh", "--resume", "a-1", "a.py")
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        "error: --resume and --fresh exclude each other", "hint: leave out one of them",
    ]  # fmt: skip


def test_nodes_with_files_of_different_runs_are_refused(lab: Shell) -> None:
    lab.write(
        "b.py", MEETS + "import pathlib\nos.environ['RANK'] == '1' and pathlib.Path('other.pt').write_text('1')\n"
    )
    begins(lab, *BOTH, "b.py")
    begins(lab, "run", "--", "sh", "-c", "echo 10 >snapshot.pt")
    refused = lab.run(*BOTH, "a.py")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-2:] == [
        "error: the nodes have files of different runs: other.pt of b-1 lies on node1 alone (and 1 more file)",
        "hint: put one run's files on every node: --resume RUN; or start without what earlier runs made: --fresh",
    ]
