"""On a PBS cluster, whose commands a stand-in plays: a job is submitted from a laptop, and what was made comes home
whatever becomes of the job. No signal of PBS's reaches what left a task's session: nothing of it stays all the same."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import HANG_S, until
from tests.files import expire_lease
from tests.system.chaos.hits import guards, kill
from tests.system.lab.laptop import Laptop
from tests.system.lab.pbs import Pbs
from tests.system.lab.test_slurm import RUN, SCRIPT, expect_forwarded, results
from tests.system.train.made import cifar10 as made

NODES = ("--nodes", "2", "--gpus", "2")
PROOF = pytest.mark.proof
HELD = 1.461


@pytest.fixture
def user(pbs: Pbs, laptop: Laptop) -> Laptop:
    """Gone before the cluster is."""
    assert pbs.login.pid
    laptop.write("script.py", SCRIPT)
    return laptop


def place(user: Laptop, pbs: Pbs) -> tuple[str, ...]:
    return tuple(user.naming(pbs.login))


def begin(user: Laptop, pbs: Pbs, kind: tuple[str, ...] = RUN) -> subprocess.Popen[str]:
    """A run on two nodes of a job of its own, once both scripts are at work."""

    def at_work() -> int:
        return sum(any(line.endswith(" script.py") for line in host.processes()) for host in pbs.nodes)

    program = ["script.py"] if kind[0] == "train" else ["--", "python3", "script.py"]
    run = user.start(*kind, "--on", "pbs", *place(user, pbs), *NODES, *program)
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
    from_where = user.run("ssh", "lab", "--node", "1", "--", "printenv", "SSH_CONNECTION").stdout
    assert from_where.startswith(f"{pbs.login.address} "), "by one step from the login node"
    looked = user.run("doctor", "pbs", *place(user, pbs)).stdout
    assert "ok: queue workq (the default): 2 nodes with 4 GPUs (gpu_model=v100), 4 cores, 7 GB (2 free); " in looked
    assert "4 of 8 GPUs free now; a job may take 2 h 00 min" in looked
    assert "ok: queue workq: you 8 GPUs at once" in looked
    expect_forwarded(user, pbs.login, pbs.nodes[1])
    done = user.run("down", "lab")
    assert done.returncode == 0, done.stderr
    expect_nothing_left(user, pbs)


def test_a_job_that_can_never_run_is_not_waited_for(user: Laptop, pbs: Pbs) -> None:
    done = user.run("up", "pbs", *place(user, pbs), *NODES, "--select-extra", "host=nowhere")
    assert done.returncode == 4, done.stderr
    assert "PBS will never start its job (Insufficient amount of resource: host)" in done.stderr
    expect_nothing_left(user, pbs)


@pytest.mark.parametrize(
    "how", ["deleted", *(pytest.param(one, marks=PROOF) for one in ("out of time", "forgotten", "lease"))]
)
def test_a_job_that_ends_brings_its_snapshot_home(user: Laptop, pbs: Pbs, how: str) -> None:
    """The command itself does, though it takes longer than the machines stay. `forgotten`: by PBS, as soon as it is
    deleted."""
    user.write("script.py", SCRIPT + "open(f'snapshots/{rank}.pt', 'wb').truncate(150 << 20)\n")
    run = begin(user, pbs)
    (job,) = pbs.jobs()
    if how == "lease":
        expire_lease(next(pbs.home.glob(".gpuops-*/*/n1/lease.json")))
    elif how == "out of time":
        pbs.ask("qalter", "-l", "walltime=0:00:01", job)
    else:
        (pbs.home / ".pbs/no_history").touch() if how == "forgotten" else None
        pbs.ask("qdel", job)
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 4, err
    assert ("lease" if how == "lease" else "reclaimed by PBS") in err
    assert "not home" not in err
    assert results(user) == {"0.txt": "stopped", "1.txt": "stopped"}
    expect_nothing_left(user, pbs)


@PROOF  # test_slurm.py kills what holds a machine there
@pytest.mark.parametrize("what", ["hold", "watchdog", "agent", "torchrun"])
def test_what_is_killed_on_a_machine(user: Laptop, pbs: Pbs, what: str) -> None:
    """Its node or its run ends, though no one else would end what runs there."""
    run = begin(user, pbs, kind=("train", "multinode") if what == "torchrun" else RUN)
    fits = "torch[.]distributed[.]run" if what == "torchrun" else f"^[^ ]*python3[^ ]* (-I )?[^ ]*[.]pyz {what} "
    assert pbs.nodes[1].run(["pkill", "-KILL", "-f", fits]).returncode == 0, pbs.nodes[1].processes()
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == (1 if what == "torchrun" else 4), err
    assert "node1" in err
    expect_nothing_left(user, pbs)


@PROOF
@pytest.mark.parametrize("how", ["deleted", "Ctrl-C"])
def test_what_waits_in_the_queue(user: Laptop, pbs: Pbs, how: str) -> None:
    other = pbs.fill()
    up = user.start("up", "pbs", *place(user, pbs), *NODES)
    assert up.stderr
    assert any("queued: Insufficient amount of resource: ngpus" in line for line in iter(up.stderr.readline, ""))
    listed = user.run("status", "--cloud").stdout
    assert [line.split()[2:4] for line in listed.splitlines()[1:4]] == [["job", "queued"], *2 * [["machine", "queued"]]]
    if how == "Ctrl-C":
        up.send_signal(signal.SIGINT)
    else:
        pbs.ask("qdel", *(job for job in pbs.jobs() if job != other))
    _, err = up.communicate(timeout=HANG_S)
    assert up.returncode == (130 if how == "Ctrl-C" else 4), err
    assert how == "Ctrl-C" or "its job was deleted while it was queued" in err
    assert pbs.jobs() == [other]
    pbs.ask("qdel", other)
    expect_nothing_left(user, pbs)


@PROOF
@pytest.mark.parametrize("what", ["its job", "nothing else"])
def test_a_lost_laptop_finds_all_of_it_afterwards(user: Laptop, pbs: Pbs, what: str) -> None:
    """The command and its guard are gone, and the job is deleted from outside, or runs on; `down` brings home what
    there is."""
    run = begin(user, pbs)
    run.kill()
    run.wait()
    for guard in guards(user):
        kill(guard)
    if what == "its job":
        pbs.ask("qdel", *pbs.jobs())
        until(lambda: not pbs.jobs() and not pbs.ours(), "the job is over, and nothing of it runs")
    done = user.run("down", "--all")
    assert done.returncode == 0, done.stderr
    assert results(user) == {"0.txt": "stopped", "1.txt": "stopped"}
    expect_nothing_left(user, pbs)


def test_a_site_that_does_not_let_us_to_its_machines(user: Laptop, pbs: Pbs) -> None:
    """No key that is not known is believed, and what to ask for is told."""
    pbs.known_hosts.unlink()
    done = user.run("up", "pbs", *place(user, pbs), *NODES, "--timeout", "15")
    assert done.returncode == 4, done.stderr
    assert "the login node cannot reach this machine of the job by ssh" in done.stderr
    expect_nothing_left(user, pbs)


@PROOF
@pytest.mark.real_torch
def test_resnet_on_two_nodes_in_one_line(user: Laptop, pbs: Pbs, tmp_path: Path) -> None:
    """The tutorial's own job, on few images of the published format: queued, learnt, home, and the job has ended."""
    (tmp_path / "cifar").mkdir()
    data = made.make(tmp_path / "cifar").parent
    program = ("--workload", "cifar10", "--data", str(data), "--", "8", "8", "--width", "8", "--batch_size", "20")
    wanted = ("--nodes", "2", "--gpus", "1", "--select-extra", "gpu_model=v100", "--env", "OMP_NUM_THREADS=1")
    done = user.run("train", "multinode", "--on", "pbs", *place(user, pbs), *wanted, *program)
    assert done.returncode == 0, done.stderr
    loss = re.findall(r"\[n0 r0\] epoch 8: loss (\S+), train accuracy", done.stdout)
    assert float(*loss) < HELD / 2, "a softmax before the loss would hold it above that"
    assert "[n0 r0] 8 epochs took" in done.stdout
    assert "on 2 x " in done.stdout
    assert "all 2 ranks ended well" in done.stderr
    assert list(user.folder.glob("runs/cifar10-1/out/snapshots/cifar10/*.pt"))
    expect_nothing_left(user, pbs)
