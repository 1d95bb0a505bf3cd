"""On a Slurm cluster with its own commands and daemons: a job is submitted from a laptop, and what was made comes home
whatever becomes of the job, the laptop or what holds a machine. Nothing stays in the queue, on a node or at home."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provisioners.slurm import commands
from tests.conftest import HANG_S, until
from tests.system.chaos.hits import guards, kill
from tests.system.lab.hosts import Host
from tests.system.lab.laptop import Laptop
from tests.system.lab.slurm import USER, USER_ID, Slurm
from tests.system.lab.test_containers import APPTAINER

SCRIPT = """
import os, pathlib, time
rank = os.environ.get("RANK") or os.environ["GPUOPS_NODE"]
outer = [name for name in os.environ if name.startswith(("SLURM", "PMI"))]
print("rank", rank, "on", os.uname().nodename, "sees", os.environ.get("CUDA_VISIBLE_DEVICES"), outer, flush=True)
stop, go = pathlib.Path(os.environ["GPUOPS_STOP_FILE"]), pathlib.Path("go")
while not stop.exists() and not go.exists():
    time.sleep(0.05)
pathlib.Path("snapshots").mkdir(exist_ok=True)
pathlib.Path(f"snapshots/{rank}.txt").write_text("stopped" if stop.exists() else "done")
"""
COUNTS = """
import os, pathlib, time
rank, stop = os.environ["GPUOPS_NODE"], pathlib.Path(os.environ["GPUOPS_STOP_FILE"])
snapshot = pathlib.Path(f"snapshots/{rank}.txt")
snapshot.parent.mkdir(exist_ok=True)
step = int(snapshot.read_text()) if snapshot.exists() else 0
print("rank", rank, "begins at", step, flush=True)
while step < 40 and not stop.exists():
    time.sleep(0.1)
    step += 1
snapshot.write_text(str(step))
print("rank", rank, "ends at", step, flush=True)
"""
SWEEP = """
import os, pathlib, sys, time
index, home = sys.argv[1], pathlib.Path.home()
print(index, "on", os.uname().nodename, "finds", [str(path) for path in pathlib.Path().glob("*.pt")], flush=True)
pathlib.Path("model.pt").write_text(index)
(home / f"at-work-{index}").touch()
deadline = time.monotonic() + 60
while index in "45" and not (home / f"at-work-{9 - int(index)}").exists():
    assert time.monotonic() < deadline
    time.sleep(0.05)
sys.exit(3 if index == "6" else 0)
"""
ROOT = Path(__file__).parents[3]
NODES = ("--nodes", "2", "--gpus", "2")
RUN = ("run", "--all-nodes")
PROOF = pytest.mark.proof


@pytest.fixture
def user(slurm: Slurm, laptop: Laptop) -> Laptop:
    """Gone before the cluster is."""
    assert slurm.login.pid
    laptop.write("script.py", SCRIPT)
    return laptop


def place(user: Laptop, slurm: Slurm) -> tuple[str, ...]:
    return tuple(user.naming(slurm.login, user=USER))


def begin(user: Laptop, slurm: Slurm, *more: str, kind: tuple[str, ...] = RUN) -> subprocess.Popen[str]:
    """A run on two nodes of a job of its own, once both scripts are at work."""

    def at_work() -> int:
        return sum(any(line.endswith(" script.py") for line in host.processes()) for host in slurm.nodes)

    program = ["script.py"] if kind[0] == "train" else ["--", "python3", "script.py"]
    run = user.start(*kind, "--on", "slurm", *place(user, slurm), *NODES, *more, *program)
    until(lambda: at_work() == 2 or run.poll() is not None, "both nodes at work")
    assert run.poll() is None, run.communicate()
    return run


def finished_jobs(slurm: Slurm) -> list[str]:
    return slurm.ask("cat", "/run/slurm/jobcomp")


def finish(slurm: Slurm) -> None:
    """What the script waits for."""
    for project in slurm.home.glob(".gpuops-*/*/n*/project"):
        (project / "go").touch()


def results(user: Laptop) -> dict[str, str]:
    return {path.name: path.read_text() for path in user.folder.glob("runs/*/out/**/*.txt")}


def expect_nothing_left(user: Laptop, slurm: Slurm) -> None:
    """No job, no process of ours on a node, no file in the shared home."""
    until(lambda: not slurm.jobs(), f"no job, but {slurm.jobs()}")
    until(lambda: not slurm.ours(), f"no process, but {slurm.ours()}")
    until(lambda: not slurm.files(), f"no file, but {slurm.files()}")
    assert user.clusters() == []


def test_up_train_again_down(user: Laptop, slurm: Slurm) -> None:
    done = user.run("up", "slurm", "--name", "lab", *place(user, slurm), *NODES, "--max-hours", "1")
    assert done.returncode == 0, done.stderr
    assert "2 nodes of partition gpu with 2 GPUs and 2 cores each, for 1 h 00 min" in done.stderr
    user.write("go", "")
    for _ in range(2):
        done = user.run("train", "multinode", "script.py")
        assert done.returncode == 0, done.stderr
        assert "rank 0 on c1 sees 0,1 []" in done.stdout
        assert "rank 3 on c2 sees 0,1 []" in done.stdout
    assert results(user).keys() == {f"{rank}.txt" for rank in range(4)}
    assert user.run("ssh", "lab", "--node", "1", "--", "hostname").stdout == "c2\n"
    expect_forwarded(user, slurm.login, slurm.nodes[1])
    looked = user.run("doctor", "lab").stdout
    assert [name for name in ("c1", "c2") if f"ok: {name}: " in looked] == ["c1", "c2"], "the machines, not the login"
    looked = user.run("doctor", "slurm", *place(user, slurm)).stdout
    assert "ok: Slurm 22" in looked
    assert (
        "ok: partition gpu (the default): 2 nodes with 8 GPUs, 8 cores, 1000 MB (0 idle); 12 of 16 GPUs free" in looked
    )
    refused = user.run("lease", "lab", "--extend", "2h")
    assert refused.returncode == 2
    assert "lab was given its machines until" in refused.stderr
    done = user.run("down", "lab")
    assert done.returncode == 0, done.stderr
    expect_nothing_left(user, slurm)


def expect_forwarded(user: Laptop, login: Host, machine: Host) -> None:
    """What listens on node1's own loopback alone is open on the laptop, byte by byte, as soon as something does; and no
    part of the way stays afterwards."""
    forward = user.start("forward", "lab", "6006", "--node", "1")
    assert forward.stderr
    assert "nothing listens on port 6006 of node1 yet" in forward.stderr.readline()
    made = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096)"
    serve = "exec python3 -m http.server 6006 -b 127.0.0.1 >/dev/null 2>&1 &"
    machine.run(["sh", "-c", f"cd /srv && python3 -c '{made}' >page; {serve}"], check=True)
    assert "http://127.0.0.1:6006 is port 6006 of node1 of lab" in forward.stderr.readline()
    ask = "import sys, urllib.request as web; sys.stdout.write(web.urlopen(sys.argv[1]).read().hex())"
    argv = [*user.prefix, sys.executable, "-c", ask, "http://127.0.0.1:6006/page"]
    page = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert bytes.fromhex(page) == bytes(range(256)) * 4096
    way = login.run(["sh", "-c", "stat -c '%a %F' /tmp/gpuops-*"]).stdout
    assert way == "700 directory\n", "others of the login node listen nowhere in it"
    forward.terminate()
    forward.communicate(timeout=HANG_S)
    until(lambda: not any("6006" in line for line in login.processes()), f"no way on, but {login.processes()}")
    assert [path for path in login.files("/tmp") if "gpuops" in path] == []


@PROOF  # an idle end of a minute
def test_a_shell_in_a_job_is_use_of_it(user: Laptop, slurm: Slurm) -> None:
    """And without one the job ends: others wait for its machine."""
    done = user.run("up", "slurm", "--name", "lab", *place(user, slurm), "--gpus", "1", "--idle", "1")
    assert done.returncode == 0, done.stderr
    (used,) = slurm.home.glob(".gpuops-*/lab/n0/activity")
    ours, its = pty.openpty()
    argv = [*user.prefix, sys.executable, "-m", "gpuops", "ssh", "lab"]
    shell = subprocess.Popen(argv, stdin=its, stdout=its, stderr=its, cwd=user.folder, env=user.environment())
    os.close(its)
    said = b""
    os.write(ours, b"echo in $SLURM_JOB_ID.; tty\n")
    while not re.search(rb"in \d+\.\s+/dev/pts", said):
        said += os.read(ours, 4096)
    for _ in range(3):
        before = used.stat().st_mtime_ns
        until(lambda: used.stat().st_mtime_ns > before, "another sign of use, of a person alone")  # noqa: B023
    assert len(slurm.jobs()) == 1
    os.write(ours, b"exit\n")
    assert shell.wait(HANG_S) == 0
    os.close(ours)
    until(lambda: not slurm.jobs(), f"an idle end, but {slurm.jobs()}")
    assert user.run("down", "lab").returncode == 0
    expect_nothing_left(user, slurm)


def test_an_array_is_a_queue_in_one_job(user: Laptop, slurm: Slurm) -> None:
    """Two of its runs end only where both are at work; the third follows on the machine that is free first."""
    user.write("sweep.py", SWEEP)
    array = ("--nodes", "2", "--gpus", "1", "--array", "4-6", "--json")
    done = user.run("run", "--on", "slurm", *place(user, slurm), *array, "--", "python3", "sweep.py", "{index}")
    assert done.returncode == 1, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [(one["index"], one["exit_code"]) for one in runs] == [(4, 0), (5, 0), (6, 1)]
    said = [Path(one["home"], "logs/node0/launcher.out").read_text() for one in runs]
    assert {said[0], said[1]} == {"4 on c1 finds []\n", "5 on c2 finds []\n"}
    assert said[2] in ("6 on c1 finds []\n", "6 on c2 finds []\n")
    assert [Path(one["home"], "out/model.pt").read_text() for one in runs] == ["4", "5", "6"]
    assert done.stderr.count("code: ") == 1, "one push"
    assert len(finished_jobs(slurm)) == 1, "one job"
    expect_nothing_left(user, slurm)


@pytest.mark.real_torch
@PROOF  # sixteen ranks on the cores of one test machine: a minute
def test_the_tutorials_line_at_sixteen_ranks(user: Laptop, slurm: Slurm) -> None:
    """As two nodes of eight GPUs print it; on hosts: test_workloads.py."""
    job = ("--on", "slurm", *place(user, slurm), "--nodes", "2", "--gpus", "8")
    done = user.run("train", "multinode", *job, "--workload", "toy", "--", "50", "10")
    assert done.returncode == 0, done.stderr
    assert "all 16 ranks ended well" in done.stderr
    assert "[n1 r11] [GPU11] Epoch 47 | Batchsize: 32 | Steps: 4" in done.stdout.splitlines()
    assert (
        sorted(path.name for path in user.folder.glob("runs/toy-1/out/snapshots/toy/step-*"))[-1] == "step-00000200.pt"
    )
    expect_nothing_left(user, slurm)


def test_a_run_is_in_an_image_file_of_apptainer(user: Laptop, slurm: Slurm) -> None:
    """Which the job's machine has, and the login node has not."""
    host = slurm.nodes[0]
    host.write("/usr/local/bin/apptainer", APPTAINER)
    host.run(["chmod", "755", "/usr/local/bin/apptainer"], check=True)
    user.write("script.py", "import os; print('in', os.environ.get('APPTAINER_CONTAINER'))")
    job = ("--on", "slurm", *place(user, slurm), "--gpus", "1", "--sbatch-arg=--nodelist=c1")
    done = user.run("run", *job, "--image", "/srv/image.sif", "--", "python3", "script.py")
    assert "in /srv/image.sif" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
    assert "the image's)" in done.stderr
    expect_nothing_left(user, slurm)


def test_a_module_of_the_site_is_loaded_in_every_rank(user: Laptop, slurm: Slurm) -> None:
    """As doctor says it, with real environment modules: `module` is a function of login shells, and a job has none."""
    if not shutil.which("add.modules"):
        pytest.skip("modules need add.modules (Debian: environment-modules)")
    for host in slurm.hosts:
        host.run(["mkdir", "-p", "/usr/share/modules/modulefiles/pytorch"], check=True)
        made = "#%Module1.0\nsetenv TORCH_MODULE 2.1\nprepend-path PATH /srv/torch/bin\n"
        host.write("/usr/share/modules/modulefiles/pytorch/2.1", made)
    looked = user.run("doctor", "slurm", *place(user, slurm)).stdout
    assert "ok: modules with torch: pytorch/2.1\n" in looked
    hint = "module load pytorch/2.1"
    assert f"hint: to use one: --prelude '{hint}'" in looked
    user.write("script.py", "import os; print(os.environ['TORCH_MODULE'], os.environ['PATH'].split(':')[0])")
    done = user.run("train", "multinode", "--on", "slurm", *place(user, slurm), *NODES, "--prelude", hint, "script.py")
    assert "all 4 ranks ended well" in done.stderr, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if "2.1" in line)
    assert said == [f"[n{rank // 2} r{rank}] 2.1 /srv/torch/bin" for rank in range(4)]
    expect_nothing_left(user, slurm)


def test_ctrl_c_in_the_queue_cancels(user: Laptop, slurm: Slurm) -> None:
    (other,) = slurm.ask("sbatch", "--parsable", "-N2", "--exclusive", "-t", "9", "-o", "/dev/null", "--wrap=sleep 600")
    until(lambda: len(slurm.jobs()) == 1, "the cluster is full")
    up = user.start("up", "slurm", *place(user, slurm), *NODES)
    until(lambda: len(slurm.jobs()) == 2 or up.poll() is not None, "it is queued")
    until(lambda: "slurm-1: queued: Resources" in user.run("status").stdout, "Slurm has said why")
    listed = user.run("status", "--cloud").stdout
    assert [line.split()[2:4] for line in listed.splitlines()[1:4]] == [["job", "queued"], *2 * [["machine", "queued"]]]
    up.send_signal(signal.SIGINT)
    _, err = up.communicate(timeout=HANG_S)
    assert up.returncode == 130, err
    assert [line.split()[0] for line in slurm.jobs()] == [other]
    slurm.ask("scancel", other)
    expect_nothing_left(user, slurm)


def test_a_job_that_can_never_run_is_not_waited_for(user: Laptop, slurm: Slurm) -> None:
    done = user.run("up", "slurm", *place(user, slurm), *NODES, "--sbatch-arg=--hold")
    assert done.returncode == 4, done.stderr
    assert "Slurm will never start its job (JobHeldUser)" in done.stderr
    expect_nothing_left(user, slurm)


@PROOF
@pytest.mark.parametrize("slurm", ["linuxproc"], indirect=True)
@pytest.mark.parametrize("what", ["job", "hold", "watchdog", "agent"])
def test_without_cgroups_nothing_outlives_its_job(user: Laptop, slurm: Slurm, what: str) -> None:
    run = begin(user, slurm)
    if what == "job":
        slurm.ask("scancel", slurm.jobs()[0].split()[0])
    else:
        slurm.nodes[1].run(["pkill", "-KILL", "-f", f"[.]pyz {what} "])
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 4, err
    if what == "job":  # Slurm signals every process of it, and would end the script before it hears of that
        assert "reclaimed by Slurm" in err
        assert results(user) == {"0.txt": "stopped", "1.txt": "stopped"}
    expect_nothing_left(user, slurm)


@pytest.mark.parametrize("how", ["cancelled", "out of time"])
def test_a_job_that_is_taken_back_brings_its_snapshot_home(user: Laptop, slurm: Slurm, how: str) -> None:
    run = begin(user, slurm)
    (job,) = [line.split()[0] for line in slurm.jobs()]
    if how == "cancelled":
        slurm.ask("scancel", job)
    else:
        slurm.ask("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 4, err
    assert "reclaimed by Slurm" in err
    assert results(user) == {"0.txt": "stopped", "1.txt": "stopped"}
    expect_nothing_left(user, slurm)


@pytest.mark.parametrize("how", ["preempted", pytest.param("node failed", marks=PROOF)])
def test_retries_queue_for_another_job_that_goes_on_from_the_snapshot(user: Laptop, slurm: Slurm, how: str) -> None:
    user.write("script.py", COUNTS)
    run = begin(user, slurm, "--retries", "2")
    (job, name, _) = slurm.jobs()[0].split()
    if how == "preempted":
        slurm.ask("sbatch", "-p", "urgent", "-N2", "--exclusive", "-t", "1", "-o", "/dev/null", "--wrap=sleep 3")
    else:
        slurm.ask("scontrol", "update", "NodeName=c2", "State=DOWN", "Reason=test")
    out, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 0, err
    assert "retry 1 of 2" in err
    begun, ended = (sorted(re.findall(rf"rank (\d) {word} at (\d+)", out)) for word in ("begins", "ends"))
    assert begun == sorted([("0", "0"), ("1", "0"), *(end for end in ended if end[1] != "40")]), (
        "no step lost or doubled"
    )
    assert results(user) == {"0.txt": "40", "1.txt": "40"}
    told = slurm.login.run(["sh", "-c", commands.PAST, "sh", "2026-01-01", name]).stdout
    past = {one.id: one for one in commands.parse_past_jobs(told, {name})}
    assert (past[job].preempted, past[job].failed) == (how == "preempted", how == "node failed"), told
    expect_nothing_left(user, slurm)


def test_a_lost_laptop_finds_all_of_it_afterwards(user: Laptop, slurm: Slurm) -> None:
    """The command and its guard are gone, the job is ended from outside; `down` brings home what it has left."""
    run = begin(user, slurm)
    run.kill()
    run.wait()
    for guard in guards(user):
        kill(guard)
    slurm.ask("scancel", slurm.jobs()[0].split()[0])
    until(lambda: not slurm.jobs(), "the job is over")
    assert results(user) == {}
    done = user.run("down", "--all")
    assert done.returncode == 0, done.stderr
    assert results(user) == {"0.txt": "stopped", "1.txt": "stopped"}
    expect_nothing_left(user, slurm)


@PROOF
def test_a_lost_ledger_is_no_lost_job(user: Laptop, slurm: Slurm) -> None:
    done = user.run("up", "slurm", "--name", "lab", *place(user, slurm), *NODES)
    assert done.returncode == 0, done.stderr
    for path in user.home.glob("ledger*"):
        path.unlink()
    done = user.run("reap", "--yes")
    assert done.returncode == 0, done.stderr
    expect_nothing_left(user, slurm)


def test_on_the_login_node_itself(slurm: Slurm) -> None:
    """Without `--host`; the queue is asked as a process, and so are the nodes."""
    for package in ("gpuops", "provisioners"):
        shutil.copytree(ROOT / package, slurm.home / "src" / package, ignore=shutil.ignore_patterns("__pycache__"))
    (slurm.home / "project").mkdir()
    (slurm.home / "project" / "script.py").write_text(SCRIPT)
    (slurm.home / "project" / "go").touch()
    slurm.login.run(["chown", "-R", USER, "/root"], check=True)
    as_user = ["setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups"]
    gpuops = [*as_user, "env", "-C", "/root/project", "PYTHONPATH=/root/src", sys.executable, "-m", "gpuops"]
    done = slurm.login.run([*gpuops, *RUN, "--on", "slurm", *NODES, "--", "python3", "script.py"])
    assert done.returncode == 0, done.stderr
    assert "rank 1 on c2 sees 0,1 []" in done.stdout
    (result,) = slurm.home.glob("project/runs/*/out/snapshots/1.txt")
    assert result.read_text() == "done"
    until(lambda: not slurm.jobs() and not slurm.ours(), f"nothing is left, but {slurm.jobs()} {slurm.ours()}")
    until(lambda: not slurm.files(), f"no file, but {slurm.files()}")


def test_what_holds_a_machine_is_killed(user: Laptop, slurm: Slurm) -> None:
    """Its node ends, and the other one hears of it; what both have written comes home."""
    run = begin(user, slurm)
    slurm.nodes[1].run(["pkill", "-KILL", "-f", "[.]pyz hold "])
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 4, err
    assert "the run was lost on node1" in err
    expect_nothing_left(user, slurm)


@PROOF
@pytest.mark.parametrize(
    ("fits", "code", "why"),
    [
        ("[.]pyz agent ", 4, "gpuops' agent on this node was killed"),
        ("[.]pyz watchdog ", 4, "gpuops' watchdog on this node was killed"),
        ("torch[.]distributed[.]run", 1, "torchrun on node1 was ended by SIGKILL"),
        ("^[^ ]*python script[.]py$", 1, "rank [23] on node1 was ended by SIGKILL"),
    ],
)
def test_what_is_killed_on_a_machine(user: Laptop, slurm: Slurm, fits: str, code: int, why: str) -> None:
    """Its run ends on both, and with it the job."""
    run = begin(user, slurm, kind=RUN if code == 4 else ("train", "multinode"))
    until(lambda: slurm.nodes[1].run(["pkill", "-KILL", "-n", "-f", fits]).returncode == 0, f"{fits} is killed")
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == code, err
    assert re.search(why, err), err
    expect_nothing_left(user, slurm)


@PROOF
@pytest.mark.parametrize("what", ["drained", "controller", "killed and started again"])
def test_a_run_outlives_what_slurm_does_with_its_node(user: Laptop, slurm: Slurm, what: str) -> None:
    """It is drained, or its slurmd, or the controller, is killed and started again."""
    run = begin(user, slurm)
    if what == "drained":
        slurm.ask("scontrol", "update", "NodeName=c2", "State=DRAIN", "Reason=test")
    elif what == "controller":
        slurm.login.run(["pkill", "-KILL", "slurmctld"], check=True)
        slurm.login.run(["slurmctld", "-L", "/run/slurm/slurmctld.log"], check=True)
    else:
        slurm.nodes[1].run(["pkill", "-KILL", "-x", "slurmd"], check=True)
        slurm.nodes[1].run(["slurmd", "-L", "/run/slurm/slurmd.log"], check=True)
    finish(slurm)
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 0, err
    assert results(user) == {"0.txt": "done", "1.txt": "done"}
    expect_nothing_left(user, slurm)


@PROOF
def test_a_job_that_slurm_cannot_end(user: Laptop, slurm: Slurm) -> None:
    """A node's slurmd is gone for good: results are home, what is left is told, and the guard sees to its end."""
    run = begin(user, slurm)
    slurm.nodes[1].run(["pkill", "-KILL", "-x", "slurmd"], check=True)
    finish(slurm)
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 5, err
    assert "may still be there" in err
    assert results(user) == {"0.txt": "done", "1.txt": "done"}
    slurm.ask("scontrol", "update", "NodeName=c2", "State=DOWN", "Reason=test")  # as Slurm itself does after a while
    until(lambda: user.clusters() == [], "the guard's work")
    expect_nothing_left(user, slurm)
