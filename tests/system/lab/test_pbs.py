"""On a PBS cluster, whose commands a stand-in plays: a job is submitted from a laptop, and what was made comes home
whatever becomes of the job. No signal of PBS's reaches what left a task's session: nothing of it stays all the same."""

from __future__ import annotations

import subprocess

import pytest

from tests.conftest import HANG_S, until
from tests.system.lab.laptop import Laptop
from tests.system.lab.pbs import Pbs
from tests.system.lab.test_slurm import RUN, SCRIPT, results

NODES = ("--nodes", "2", "--gpus", "2")


@pytest.fixture
def user(pbs: Pbs, laptop: Laptop) -> Laptop:
    """Gone before the cluster is."""
    assert pbs.login.pid
    laptop.write("script.py", SCRIPT)
    return laptop


def place(user: Laptop, pbs: Pbs) -> tuple[str, ...]:
    return tuple(user.naming(pbs.login))


def begin(user: Laptop, pbs: Pbs) -> subprocess.Popen[str]:
    """A run on two nodes of a job of its own, once both scripts are at work."""

    def at_work() -> int:
        return sum(line.endswith("python3 script.py") for host in pbs.nodes for line in host.processes())

    run = user.start(*RUN, "--on", "pbs", *place(user, pbs), *NODES, "--", "python3", "script.py")
    until(lambda: at_work() == 2 or run.poll() is not None, "both nodes at work")
    assert run.poll() is None, run.communicate()
    return run


def expect_nothing_left(user: Laptop, pbs: Pbs) -> None:
    """No job, no process of ours on a node, no file in the shared home."""
    until(lambda: not pbs.jobs(), f"no job, but {pbs.jobs()}")
    until(lambda: not pbs.ours(), f"no process, but {pbs.ours()}")
    until(lambda: not pbs.files(), f"no file, but {pbs.files()}")
    until(lambda: user.clusters() == [], "no cluster: a guard may have to end it")


def test_up_train_down(user: Laptop, pbs: Pbs) -> None:
    flags = ("--select-extra", "gpu_model=v100", "--max-hours", "1")
    done = user.run("up", "pbs", "--name", "lab", *place(user, pbs), *NODES, *flags)
    assert done.returncode == 0, done.stderr
    assert "2 nodes of queue workq with 2 GPUs and 2 cores each, for 1 h 00 min" in done.stderr
    user.write("go", "")
    done = user.run("train", "multinode", "script.py")
    assert done.returncode == 0, done.stderr
    assert "rank 0 on c1 sees 0,1 []" in done.stdout
    assert "rank 3 on c2 sees 0,1 []" in done.stdout
    assert results(user).keys() == {f"{rank}.txt" for rank in range(4)}
    odd = """it's "$HOME" `id` \\ ; * ä"""
    there = user.run("ssh", "lab", "--node", "1", "--", "printf", "%s|", odd, "a  b")
    assert there.stdout == f"{odd}|a  b|"
    done = user.run("down", "lab")
    assert done.returncode == 0, done.stderr
    expect_nothing_left(user, pbs)


def test_a_job_that_can_never_run_is_not_waited_for(user: Laptop, pbs: Pbs) -> None:
    done = user.run("up", "pbs", *place(user, pbs), *NODES, "--mem", "900000mb")
    assert done.returncode == 4, done.stderr
    assert "PBS will never start its job (Insufficient amount of resource: mem)" in done.stderr
    expect_nothing_left(user, pbs)


@pytest.mark.parametrize("history", ["kept", pytest.param("not kept", marks=pytest.mark.proof)])
def test_a_job_that_is_deleted_brings_its_snapshot_home(user: Laptop, pbs: Pbs, history: str) -> None:
    """The command itself does, though it takes longer than the machines stay."""
    if history == "not kept":
        (pbs.home / ".pbs/no_history").touch()
    user.write("script.py", SCRIPT + "open(f'snapshots/{rank}.pt', 'wb').truncate(150 << 20)\n")
    run = begin(user, pbs)
    pbs.ask("qdel", *pbs.jobs())
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 4, err
    assert "reclaimed by PBS" in err
    assert "not home" not in err
    assert results(user) == {"0.txt": "stopped", "1.txt": "stopped"}
    expect_nothing_left(user, pbs)


def test_what_holds_a_machine_is_killed(user: Laptop, pbs: Pbs) -> None:
    """Its node ends, though no one else would end what runs there."""
    run = begin(user, pbs)
    pbs.nodes[1].run(["pkill", "-KILL", "-f", "^[^ ]*python3[^ ]* -I [^ ]*[.]pyz hold "])
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 4, err
    assert "the run was lost on node1" in err or "node1 was ended under the run" in err
    expect_nothing_left(user, pbs)


def test_a_site_that_does_not_let_us_to_its_machines(user: Laptop, pbs: Pbs) -> None:
    """No key that is not known is believed, and what to ask for is told."""
    pbs.known_hosts.unlink()
    done = user.run("up", "pbs", *place(user, pbs), *NODES, "--timeout", "15")
    assert done.returncode == 4, done.stderr
    assert "the login node cannot reach this machine of the job by ssh" in done.stderr
    expect_nothing_left(user, pbs)
