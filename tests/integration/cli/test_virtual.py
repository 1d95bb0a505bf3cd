"""`train --nodes 2` on a cluster of one machine: virtual nodes, made when a run asks for them, and gone with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG_S, Shell, until
from tests.integration.cli.counting import MEETS, PLAIN, TORCHRUN, Counting, remove
from tests.sshd import Sshd

WHO = ("run", "--all-nodes", "--nodes")
TELLS = ("--", "sh", "-c", "echo node $GPUOPS_NODE_RANK of $GPUOPS_NODES has $CUDA_VISIBLE_DEVICES.")
SHARED = "2 nodes on 1 machine: virtual nodes, which share cores, memory and disk"


@pytest.fixture
def lab(shell: Shell) -> Shell:
    """A cluster of one node on this machine, which is said to have four GPUs."""
    shell.env["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"
    up = shell.run("up", "local", "--name", "lab")
    assert up.returncode == 0, up.stderr
    return shell


def n1(shell: Shell) -> Path:
    return shell.home / "local/lab/n1"


def agent_mode(shell: Shell, *words: str) -> None:
    """One of the agent's modes on node1, by hand."""
    (agent,) = (shell.home / "local/agent").glob("*.pyz")
    done = subprocess.run(
        [sys.executable, "-I", str(agent), words[0], "--node", str(n1(shell)), *words[1:]],
        capture_output=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def told(shell: Shell, run: str) -> list[str]:
    """What the nodes of a run have said, in node order."""
    return [path.read_text().strip() for path in sorted((shell.folder / "runs" / run / "logs").glob("*/launcher.out"))]


def test_each_run_divides_the_machine_anew(lab: Shell) -> None:
    plan = lab.run(*WHO, "2", "--dry-run", *TELLS)
    assert "would run 2 nodes on 1 machine: virtual nodes, 2 GPUs each" in plan.stdout.splitlines(), plan
    assert not n1(lab).exists()

    two = lab.run(*WHO, "2", *TELLS)
    assert two.returncode == 0, two.stderr
    assert "2 nodes on 1 machine: virtual nodes, 2 GPUs each" in two.stderr.splitlines()
    assert told(lab, "sh-1") == ["node 0 of 2 has 0,1.", "node 1 of 2 has 2,3."]
    (cluster,) = lab.clusters()
    assert (cluster["nodes"], cluster["virtual"], cluster["state"]) == (["running"] * 2, 1, "up")
    assert "lab: 2 nodes on 1 machine, 1 of them virtual" in lab.run("status").stdout.splitlines()

    one = lab.run("run", *TELLS)
    assert one.returncode == 0, one.stderr
    assert "virtual" not in one.stderr
    assert told(lab, "sh-2") == ["node 0 of 1 has 0,1,2,3."], "all nodes are all machines"

    three = lab.run(*WHO, "3", *TELLS)
    assert three.returncode == 0, three.stderr
    assert "note: 4 GPUs do not divide among 3 nodes: 1 of the machine of node0 is not used" in three.stderr
    assert told(lab, "sh-3") == [f"node {index} of 3 has {index}." for index in range(3)]

    refused = lab.run("train", "multinode", "--workload", "toy", "--gpus", "3")
    assert refused.returncode == 2, refused.stderr
    assert "error: 2 nodes with 3 GPUs each need 6, the machine of node0 has 4" in refused.stderr

    assert lab.run("status", "--cloud").stdout.count(" yes") == 3, "its nodes are no strays"
    assert lab.run("reap").stdout == "nothing left over\n"
    assert lab.run("down").returncode == 0
    lab.expect_clean()


def test_ranks_on_virtual_nodes(shell: Shell) -> None:
    """A launcher for each; torch itself trains on such nodes in tests/system/lab/test_virtual.py."""
    shell.write("who.py", MEETS + "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n")
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    two = shell.run("train", "multinode", "who.py")
    assert two.returncode == 0, two.stderr
    assert SHARED in two.stderr.splitlines()
    assert two.stderr.splitlines()[-1] == "all 4 ranks ended well"
    by_node = shell.run("logs", "who-1", "--node", "1").stdout
    assert "rank 2 of 4" in by_node
    assert "rank 0 of 4" not in by_node
    one = shell.run("train", "multinode", "--nodes", "1", "who.py")
    assert one.stderr.splitlines()[-1] == "all 2 ranks ended well"
    assert shell.run("down").returncode == 0
    shell.expect_clean()


def test_they_are_nodes_to_every_command(lab: Shell) -> None:
    lab.write("a.py", "print()\n")
    assert lab.run(*WHO, "2", *TELLS).returncode == 0
    assert lab.run("ssh", "lab", "--node", "1", "--", "sh", "-c", "pwd; echo noted > notes.txt").stdout == (
        f"{n1(lab)}/project\n"
    )
    assert lab.run("ssh", "lab", "--node", "2", "--", "true").returncode == 2
    assert "node0, node1" in lab.run("doctor", "lab").stdout
    pushed = lab.run("push")
    assert pushed.stdout.splitlines()[-2:] == ["node0: up to date", "node1: up to date"]
    assert lab.run("push", "--from", "node1").stdout == "node0: 1 file sent from node1\n"
    assert (n1(lab).parent / "n0" / "project" / "notes.txt").read_text() == "noted\n"
    assert lab.run("push", "--from", "1", "notes.txt").stdout == "node0: up to date\n"
    refused = lab.run("push", "--from", "node2")
    assert (refused.returncode, refused.stderr.splitlines()) == (
        2,
        ["error: lab has no node2", "hint: its nodes: node0, node1"],
    )
    assert "has nothing at nowhere that is not pushed" in lab.run("push", "--from", "node1", "nowhere").stderr
    for words in (["a.py"], ["--from", "0", "--bwlimit", "2M"], ["--from", "0", "../x"]):
        assert lab.run("push", *words).returncode == 2
    assert lab.run("lease", "lab", "--extend", "2h").returncode == 0
    assert '"hard_wall": 1' in (n1(lab) / "lease.json").read_text(), "the lease is that of all"
    down = lab.run("down")
    assert down.returncode == 0, down.stderr
    assert (lab.folder / "runs/lab-left/node0/notes.txt").read_text() == "noted\n", "where it is first, and once"
    assert not (lab.folder / "runs/lab-left/node1").exists()
    lab.expect_clean()


def test_one_that_is_over_is_made_anew(lab: Shell) -> None:
    """Nobody else needs it, and what somebody made there by hand is home before it goes."""
    assert lab.run(*WHO, "2", *TELLS).returncode == 0
    lab.run("ssh", "lab", "--node", "1", "--", "sh", "-c", "echo noted > notes.txt")
    agent_mode(lab, "end")
    for words in ("run", *TELLS), ("lease", "lab", "--extend", "1h"), ("push",), ("logs", "sh-1"):
        done = lab.run(*words)
        assert done.returncode == 0, (words, done.stderr)
    again = lab.run(*WHO, "2", *TELLS)
    assert again.returncode == 0, again.stderr
    assert told(lab, "sh-3") == ["node 0 of 2 has 0,1.", "node 1 of 2 has 2,3."]
    assert (lab.folder / "runs/lab-left/node1/notes.txt").read_text() == "noted\n"

    agent_mode(lab, "end", "--remove")
    assert lab.run(*WHO, "2", *TELLS).returncode == 0
    remove(n1(lab))
    until(lambda: not [line for line in lab.processes() if str(n1(lab)) in line], "its end")
    assert lab.run(*WHO, "2", *TELLS).returncode == 0
    assert lab.run("down").returncode == 0
    lab.expect_clean()


@pytest.mark.parametrize("kind", [PLAIN, pytest.param(TORCHRUN, marks=pytest.mark.proof)], ids=["run", "train"])
def test_the_command_is_killed_and_the_guard_goes_on(shell: Shell, tmp_path: Path, kind: tuple[str, ...]) -> None:
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    counting = Counting(shell, tmp_path / "side", kind).start()
    counting.process.send_signal(signal.SIGKILL)
    counting.process.wait()
    counting.wait_beside()
    counting.enough()
    until(lambda: shell.run_states() == ["home"], "the results at home")
    # Its ranks never meet: how long they live decides whether that can be told.
    assert counting.verdict()["outcome"] in ({"done"} if kind == PLAIN else {"unclear", "unformed"})
    counting.expect_every_byte()
    assert shell.run("down").returncode == 0
    counting.expect_nothing_left()


@pytest.mark.parametrize(
    "who",
    [pytest.param(("agent",), marks=pytest.mark.proof), ("watchdog", "agent")],
    ids=["the-agent", "both"],
)
def test_a_process_of_a_virtual_node_is_killed(shell: Shell, tmp_path: Path, who: tuple[str, ...]) -> None:
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    counting = Counting(shell, tmp_path / "side").start()
    counting.kill_together(1, *who)
    done = counting.end()
    assert done.returncode == 4, done.stderr
    assert "the run was lost on node1: gpuops' agent on this node was killed while the run was on" in done.stderr
    counting.expect_every_byte()
    assert shell.run(*WHO, "2", *TELLS).returncode == 0, "its machine is as good as before"
    assert shell.run("down").returncode == 0
    shell.expect_clean()


def test_one_is_ended_under_a_run(shell: Shell, tmp_path: Path) -> None:
    """Nobody can bring it back, and nothing waits for that."""
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    counting = Counting(shell, tmp_path / "side").start()
    agent_mode(shell, "end")
    done = counting.end()
    assert done.returncode == 4, done.stderr
    assert "node1" in done.stderr.splitlines()[-2]
    assert counting.verdict()["state"] == "home"
    assert shell.run(*WHO, "2", *TELLS).returncode == 0
    assert shell.run("down").returncode == 0
    shell.expect_clean()


def test_the_idle_end_is_the_machines(lab: Shell) -> None:
    """A run that goes on beside it is use of node0, too; and where node0 ends, nothing stays beside it."""
    assert lab.run("down").returncode == 0
    assert lab.run("up", "local", "--name", "lab", "--idle", "0.35").returncode == 0
    done = lab.run(*WHO, "2", "--", "sh", "-c", "[ $GPUOPS_NODE_RANK = 0 ] || sleep 30; echo x > $GPUOPS_NODE_RANK.pt")
    assert done.returncode == 0, done.stderr
    assert (lab.folder / "runs/sh-1/out/1.pt").exists()
    until(lambda: not [line for line in lab.processes() if "/local/lab/n" in line], "the end of both nodes")


@pytest.mark.parametrize("moment", ["_init_node", pytest.param("machines_of", marks=pytest.mark.proof), "contact_node"])
def test_a_command_that_is_killed_while_it_makes_one(lab: Shell, moment: str) -> None:
    """Before there is one, before the ledger hears of it, and after."""
    killed = lab.run(*WHO, "2", *TELLS, driver=f"signal:KILL:gpuops.clusters.virtual_nodes:{moment}")
    assert killed.returncode == -signal.SIGKILL
    assert (n1(lab) / "node.json").exists() is (moment != "_init_node")
    assert len(lab.clusters()[0]["nodes"]) == (2 if moment == "contact_node" else 1)
    if moment != "machines_of":
        assert lab.run(*WHO, "2", *TELLS).returncode == 0
    assert lab.run("down").returncode == 0
    lab.expect_clean()


def test_a_ledger_that_was_lost(lab: Shell) -> None:
    """Virtual nodes come back as such: the next run divides the machine as the last one did."""
    assert lab.run(*WHO, "2", *TELLS).returncode == 0
    (lab.home / "ledger.db").unlink()
    back = lab.run("reap", "--adopt")
    assert "lab is back: 1 node on local" in back.stdout + back.stderr
    assert [one["virtual"] for one in lab.clusters()] == [1]
    assert lab.run(*WHO, "2", *TELLS).returncode == 0
    assert told(lab, "sh-2") == ["node 0 of 2 has 0,1.", "node 1 of 2 has 2,3."]
    assert lab.run("down").returncode == 0
    lab.expect_clean()


def test_on_a_host_of_ones_own(shell: Shell, tmp_path: Path, host: Sshd) -> None:
    where = f"{host.user}@127.0.0.1:{host.port}"
    up = shell.run("up", "ssh", "--name", "lab", "--host", where, "--identity", str(host.identity), "--accept-new")
    assert up.returncode == 0, up.stderr
    shell.write("data.txt", "here\n")
    two = shell.run(*WHO, "2", "--", "sh", "-c", "cat data.txt; echo made > $GPUOPS_NODE_RANK.pt")
    assert two.returncode == 0, two.stderr
    assert SHARED in two.stderr.splitlines()
    assert told(shell, "sh-1") == ["here", "here"]
    assert sorted(path.name for path in (shell.folder / "runs/sh-1/out").glob("*.pt")) == ["0.pt", "1.pt"]
    assert shell.run("ssh", "lab", "--node", "1", "--", "pwd").stdout.endswith("/lab/n1/project\n")
    assert shell.run("ssh", "lab", "--", "cat data.txt; echo $((40 + 2))").stdout == "here\n42\n"
    both = shell.run("ssh", "lab", "--all-nodes", "--", "cat data.txt; pwd >&2; exit 3")
    assert both.returncode == 3, both.stderr
    lines = sorted(both.stdout.splitlines())
    assert [line.split("/lab/")[-1] for line in lines] == ["n0/project", "[n0] here", "n1/project", "[n1] here"]

    counting = Counting(shell, tmp_path / "side").start()
    counting.process.send_signal(signal.SIGKILL)
    counting.process.wait()
    counting.enough()
    until(lambda: shell.run_states()[-1] == "home", "the results at home")
    counting.expect_every_byte()

    agent_end = "import json,glob,sys; print(len(glob.glob(sys.argv[1])))"
    there = subprocess.run([sys.executable, "-c", agent_end, f"{host.home}/.gpuops-*/lab/n*"],
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert there.stdout == "2\n"
    assert shell.run("reap").stdout == "nothing left over\n"
    assert shell.run("down").returncode == 0
    assert not list(host.home.glob(".gpuops-*"))
    shell.expect_clean()
    counting.expect_children_gone()
