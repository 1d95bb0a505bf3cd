"""Nodes in containers of hosts: Docker's own daemon, and a user who may use it, with an image made of this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import until
from tests.system.lab.engines import (
    IMAGE,
    give_docker,
    give_podman,
    give_rootless_podman,
    make_image,
    restart_docker,
    why_no_engines,
    why_no_rootless,
)
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Laptop, root

USER = "ann"
SCRIPT = """
import os, pathlib, sys
rank = os.environ["GPUOPS_NODE_RANK"]
pathlib.Path(f"made{rank}.txt").write_text(os.environ["HOME"])
pathlib.Path.home().joinpath(".cache").write_text("what a library keeps")
print("on", os.uname().nodename, "as", os.getuid(), os.environ["USER"], os.path.exists("/srv/not-in-the-image"))
"""
LONG = """
import pathlib, time
pathlib.Path("part.txt").write_text("half")
print("on", flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if reason := why_no_engines():
        pytest.skip(reason)
    path = make_image(tmp_path_factory.mktemp("image") / "base.tar")
    yield path
    path.unlink()


def add_user(host: Host, *groups: str) -> None:
    """A user of the host who is not root; `sshd` lets nobody into a locked account."""
    host.run(["useradd", "--create-home", "--shell", "/bin/sh", "--password", "*", USER], check=True)
    for group in groups:
        host.run(["usermod", "--append", "--groups", group, USER], check=True)


def naming(lab: Lab, *hosts: Host) -> list[str]:
    words = ["--accept-new", "--identity", str(lab.identity)]
    return [*words, *(word for host in hosts for word in ("--host", f"{USER}@{host.address}"))]


def docked(lab: Lab, image: Path, name: str, *, python3: bool = True) -> Host:
    """A host with Docker, whose user may use it."""
    host = lab.host(name, python3=python3, torch=False)
    host.run(["groupadd", "--force", "docker"], check=True)
    give_docker(host, image, "docker")
    add_user(host, "docker")
    return host


def containers(host: Host, engine: str = "docker") -> list[str]:
    return host.run([engine, "ps", "--all", "--format", "{{.Names}}"], check=True).stdout.split()


def container_pid(host: Host, mode: str) -> str:
    """The number, on the host, of the agent's process in a container that runs in this mode; empty without one."""
    return host.run(["pgrep", "--full", "--newest", f"[.]pyz {mode} --node"]).stdout.strip()


def expect_clean(*hosts: Host, home: str = f"/home/{USER}") -> None:
    for host in hosts:
        until(lambda host=host: not containers(host), lambda host=host: f"no container: {containers(host)}")
        until(lambda host=host: not _ours(host), lambda host=host: f"no process: {_ours(host)}")  # the guard's end
        assert [path for path in host.files(home) if "gpuops" in path] == []


def _ours(host: Host) -> list[str]:
    return [line for line in host.processes() if ".pyz" in line or "gpuops" in line]


def test_two_hosts_run_in_containers_as_their_user(lab: Lab, laptop: Laptop, image: Path) -> None:
    a, b = docked(lab, image, "a"), docked(lab, image, "b", python3=False)
    a.run(["touch", "/srv/not-in-the-image"], check=True)
    (laptop.folder / "job.py").write_text(SCRIPT)
    done = laptop.run("up", "ssh", "--name", "lab", *naming(lab, a, b), "--image", IMAGE)
    assert done.returncode == 0, done.stderr
    assert f"2 nodes in {IMAGE} on {USER}@{a.address}, {USER}@{b.address}" in done.stderr
    assert [len(containers(host)) for host in (a, b)] == [1, 1]

    done = laptop.run("run", "--all-nodes", "--", "python3", "job.py")
    assert done.returncode == 0, done.stderr
    uid = a.run(["id", "-u", USER]).stdout.strip()
    assert sorted(done.stdout.splitlines()) == [
        f"[n{i}] on {name} as {uid} {USER} False" for i, name in enumerate("ab")
    ]
    for index, host in enumerate((a, b)):
        home = (laptop.folder / "runs/python3-1/out" / f"made{index}.txt").read_text()
        assert home.startswith(f"/home/{USER}/.gpuops-")
        assert home.endswith(f"/lab/n{index}/home")
        assert (root(host) / home[1:] / ".cache").exists(), "it lies in our folder"
        strangers = host.run(["find", f"/home/{USER}", "!", "-user", USER]).stdout
        assert not strangers
    # A user's command of their own, with its exit code, inside.
    done = laptop.run("ssh", "lab", "--node", "1", "--", "sh", "-c", "ls made*; exit 3")
    assert (done.returncode, done.stdout) == (3, "made1.txt\n")

    done = laptop.run("down", "lab")
    assert done.returncode == 0, done.stderr
    expect_clean(a, b)


def test_a_container_ends_with_its_watchdog_and_not_with_its_agent(lab: Lab, laptop: Laptop, image: Path) -> None:
    host = docked(lab, image, "a", python3=False)
    (laptop.folder / "job.py").write_text(LONG)
    done = laptop.run("up", "ssh", "--name", "lab", *naming(lab, host), "--image", IMAGE)
    assert done.returncode == 0, done.stderr

    def begin(name: str) -> None:
        done = laptop.run("run", "--detach", "--", "python3", "job.py")
        assert done.returncode == 0, done.stderr
        until(lambda: "on" in laptop.run("logs", name).stdout, f"{name} is on")

    begin("python3-1")
    first = container_pid(host, "agent")
    host.run(["kill", f"-{int(signal.SIGKILL)}", first], check=True)
    until(lambda: container_pid(host, "agent") not in ("", first), "another agent")
    until(lambda: _is_home(laptop, "python3-1"), "its end")
    assert len(containers(host)) == 1, "the node goes on"

    begin("python3-2")
    host.run(["kill", f"-{int(signal.SIGKILL)}", container_pid(host, "watchdog")], check=True)
    until(lambda: not any("lab" in name for name in containers(host)), lambda: f"its end: {containers(host)}")
    done = laptop.run("status")
    assert "node0 is gone: its container has ended" in done.stdout, done.stdout
    until(lambda: _is_home(laptop, "python3-2"), "the guard's work")

    done = laptop.run("down", "lab")
    assert done.returncode == 0, done.stderr
    saved = [path.read_text() for path in (laptop.folder / "runs").rglob("part.txt")]
    assert saved == ["half", "half"], "what it made lay on the host"
    expect_clean(host)


def _is_home(laptop: Laptop, name: str) -> bool:
    return (laptop.folder / "runs" / name / "run.json").exists()


def test_what_a_host_lacks_is_said_before_anything_is_made(lab: Lab, laptop: Laptop, image: Path) -> None:
    host = lab.host("a", torch=False)
    add_user(host)
    typed = naming(lab, host)

    def refused(*more: str) -> list[str]:
        done = laptop.run("up", "ssh", *typed, *more)
        assert done.returncode in (2, 3), done.stderr
        assert [path for path in host.files(f"/home/{USER}") if "gpuops" in path] == []
        return [line for line in done.stderr.splitlines() if line.startswith(("error", "hint"))]

    where = f"{USER}@{host.address}"
    assert refused("--image", IMAGE, "--container", "docker") == [
        f"error: docker's daemon does not run on {where}",
        "hint: start it: sudo systemctl start docker",
    ]
    host.run(["groupadd", "--force", "docker"], check=True)
    give_docker(host, image, "docker")
    say = [f"error: {USER} may not use docker on {where}"]
    hint = [f"hint: sudo usermod -aG docker {USER} there, then log in anew; or --container podman"]
    assert refused("--image", IMAGE) == say + hint
    done = laptop.run("doctor", "ssh", *typed, "--container", "docker")
    assert f"  {say[0]}" in done.stdout.splitlines()
    host.run(["usermod", "--append", "--groups", "docker", USER], check=True)
    assert laptop.run("doctor", "ssh", *typed, "--container", "docker").returncode == 0

    assert refused("--image=-v") == [
        "error: --image -v is no image's name",
        "hint: name it as docker pull does: pytorch/pytorch:2.8.0",
    ]
    assert refused("--container", "docker")[0] == "error: --container docker runs an image, and none was named"
    host.run(["sh", "-c", "rm -f $(which -a docker)"], check=True)
    assert refused("--image", IMAGE, "--container", "docker")[0] == f"error: {where} has no docker"


def test_a_container_of_that_name_is_another_ones(lab: Lab, laptop: Laptop, image: Path) -> None:
    host = docked(lab, image, "a", python3=False)
    up = ("up", "ssh", "--name", "lab", *naming(lab, host), "--image", IMAGE)
    assert laptop.run(*up).returncode == 0
    (name,) = containers(host)
    assert laptop.run("down", "lab").returncode == 0
    host.run(["docker", "run", "--detach", "--name", name, IMAGE, "sleep", "1000"], check=True)
    done = laptop.run(*up)
    assert done.returncode == 4
    assert f"a container named {name} is there already" in done.stderr
    assert containers(host) == [name], "it is not ours to end"
    # And one of ours whose folder somebody has removed: it ends by itself, and is forgotten.
    host.run(["docker", "rm", "--force", name], check=True)
    assert laptop.run(*up).returncode == 0
    host.run(["sh", "-c", f"rm -rf /home/{USER}/.gpuops-*/lab"], check=True)
    until(lambda: not containers(host), "the watchdog saw it")
    assert laptop.run("down", "lab").returncode == 0
    assert laptop.run("status").stdout == "nothing is up\n"


@pytest.mark.proof
@pytest.mark.parametrize("event", ["laptop gone", "daemon restarted", "rebooted", "removed"])
def test_no_container_survives(lab: Lab, laptop: Laptop, image: Path, event: str) -> None:
    host = docked(lab, image, "a")
    up = ("up", "ssh", "--name", "lab", *naming(lab, host), "--image", IMAGE)
    if event == "laptop gone":
        starting = laptop.start(*up)
        until(lambda: containers(host), "it is being made")
        starting.kill()
        starting.communicate()
        until(lambda: not containers(host), "the guard has undone it")
        until(lambda: "lab" not in laptop.run("status").stdout, "the ledger knows")
        expect_clean(host)
        return
    assert laptop.run(*up).returncode == 0
    if event == "daemon restarted":
        restart_docker(host, "docker")
    elif event == "rebooted":
        host.reboot()
        give_docker(host, image, "docker")
    else:
        host.run(["docker", "rm", "--force", *containers(host)], check=True)
    until(lambda: not containers(host), lambda: f"no container: {containers(host)}")
    assert "its container has ended" in laptop.run("status").stdout
    done = laptop.run("down", "lab")
    assert done.returncode == 0, done.stderr
    expect_clean(host)


@pytest.mark.proof
def test_a_lost_ledger_is_no_lost_container(lab: Lab, laptop: Laptop, image: Path) -> None:
    host = docked(lab, image, "a")
    assert laptop.run("up", "ssh", "--name", "lab", *naming(lab, host), "--image", IMAGE).returncode == 0
    for path in laptop.home.glob("ledger*"):
        path.unlink()
    done = laptop.run("reap", "--yes")
    assert done.returncode == 0, done.stderr
    expect_clean(host)


@pytest.mark.proof
def test_podman(lab: Lab, laptop: Laptop, image: Path) -> None:
    host = lab.host("a", python3=False, torch=False)
    give_podman(host, image)
    (laptop.folder / "job.py").write_text(SCRIPT)
    done = laptop.run("up", "ssh", "--name", "lab", *laptop.naming(host), "--image", IMAGE, "--container", "podman")
    assert done.returncode == 0, done.stderr
    assert laptop.run("run", "--", "python3", "job.py").returncode == 0
    host.run(["kill", f"-{int(signal.SIGKILL)}", container_pid(host, "watchdog")], check=True)
    until(lambda: not containers(host, "podman"), "its end")
    assert laptop.run("down", "lab").returncode == 0
    assert [path for path in host.files("/root") if "gpuops" in path] == []


@pytest.fixture
def rootless(lab: Lab, image: Path) -> Host:
    """A host whose user has Podman's containers without root."""
    if reason := why_no_rootless():
        pytest.skip(reason)
    host = lab.host("a", python3=False, torch=False)
    add_user(host)
    give_rootless_podman(host, image, USER)
    return host


def podman(host: Host, *words: str) -> str:
    """What it says to the user."""
    return host.run(["su", USER, "-c", 'podman "$@"', "--", "podman", *words], check=True).stdout


def test_podman_without_root(lab: Lab, laptop: Laptop, rootless: Host) -> None:
    """Files are the user's, and no container outlives its agent, its watchdog and Podman's own monitor, after whose end
    Podman takes it for a running one."""
    laptop.write("job.py", SCRIPT)
    laptop.write("long.py", LONG)
    done = laptop.run("up", "ssh", "--name", "lab", *naming(lab, rootless), "--image", IMAGE, "--container", "podman")
    assert done.returncode == 0, done.stderr
    done = laptop.run("run", "--", "python3", "job.py")
    uid = rootless.run(["id", "-u", USER]).stdout.strip()
    assert done.stdout == f"on a as {uid} {USER} False\n", done.stderr
    ours = f"/home/{USER}/.gpuops-*"
    assert rootless.run(["sh", "-c", f"find {ours} ! -user {USER}"], check=True).stdout == ""
    assert "made0.txt" in rootless.run(["sh", "-c", f"ls {ours}/lab/n0/project"], check=True).stdout

    done = laptop.run("run", "--detach", "--", "python3", "long.py")
    assert done.returncode == 0, done.stderr
    until(lambda: "on" in laptop.run("logs", "python3-2").stdout, "it is on")
    agent, watchdog = container_pid(rootless, "agent"), container_pid(rootless, "watchdog")
    rootless.run(["sh", "-c", f"pkill -KILL -x conmon; kill -KILL {agent} {watchdog}"], check=True)
    until(lambda: not _ours(rootless), lambda: f"no process: {_ours(rootless)}")
    assert podman(rootless, "ps", "--format", "{{.Status}}").startswith("Up "), "so Podman says"
    assert "node0 is gone: its container has ended" in laptop.run("status").stdout
    until(lambda: _is_home(laptop, "python3-2"), "the guard's work")
    done = laptop.run("down", "lab")
    assert done.returncode == 0, done.stderr
    assert [path.read_text() for path in (laptop.folder / "runs").rglob("part.txt")] == ["half"]
    assert podman(rootless, "ps", "--all", "--quiet") == ""
    assert [path for path in rootless.files(f"/home/{USER}") if "gpuops" in path] == []


def test_what_podman_needs_without_root(lab: Lab, laptop: Laptop) -> None:
    if reason := why_no_engines() or why_no_rootless():
        pytest.skip(reason)
    host = lab.host("a", torch=False)
    add_user(host)

    def said() -> list[str]:
        lines = laptop.run("doctor", "ssh", *naming(lab, host), "--container", "podman").stdout.splitlines()
        return [line.strip() for line in lines if "podman" in line and not line.startswith(" " * 4)]

    where = f"{USER}@{host.address}"
    host.run(["sh", "-c", "mv $(command -v newuidmap) /srv"], check=True)
    assert f"error: podman on {where} works for root alone: newuidmap is not there" in said()
    host.run(["sh", "-c", "mv /srv/newuidmap /usr/bin; mv /etc/subuid /etc/subgid /srv"], check=True)
    wanted = f"error: {USER} has no subordinate user and group IDs on {where}, which podman needs without root"
    assert wanted in said()
    host.run(["sh", "-c", "mv /srv/subuid /srv/subgid /etc"], check=True)
    podman(host, "system", "migrate")
    assert not any(line.startswith("error") for line in said())


APPTAINER = """#!/bin/sh
[ "$1" = exec ] || exit 2
while [ "$1" != /srv/image.sif ]; do shift; done
shift
export APPTAINER_CONTAINER=/srv/image.sif
exec "$@"
"""
"""What it is to a run: a program that becomes the one it was given, with its environment, folder and streams."""


@pytest.mark.parametrize("kind", ["command", pytest.param("torchrun", marks=pytest.mark.proof)])
def test_an_image_file_of_apptainer(lab: Lab, laptop: Laptop, kind: str) -> None:
    host = lab.host("a")
    up = ("up", "ssh", "--name", "lab", *laptop.naming(host), "--container", "apptainer", "--image", "/srv/image.sif")
    done = laptop.run(*up)
    assert "has no apptainer" in done.stderr
    host.write("/usr/local/bin/apptainer", APPTAINER)
    host.run(["chmod", "755", "/usr/local/bin/apptainer"], check=True)
    done = laptop.run(*up)
    assert "there is no image file /srv/image.sif on" in done.stderr
    host.run(["touch", "/srv/image.sif"], check=True)
    done = laptop.run(*up)
    assert done.returncode == 0, done.stderr

    (laptop.folder / "job.py").write_text("import os; print('in', os.environ.get('APPTAINER_CONTAINER'))\n")
    line = ("train", "multigpu", "--gpus", "2", "job.py") if kind == "torchrun" else ("run", "--", "python3", "job.py")
    done = laptop.run(*line, *(("--python", "/opt/pytorch/bin/python") if kind == "torchrun" else ()))
    assert "in /srv/image.sif" in done.stdout, done.stdout + done.stderr
    assert "the image's)" in done.stderr
    assert laptop.run("down", "lab").returncode == 0


@pytest.mark.proof
@pytest.mark.parametrize("what", ["agent", "watchdog"])
def test_nothing_in_an_image_file_outlives(lab: Lab, laptop: Laptop, what: str) -> None:
    """A program in one is the child of Apptainer's, which hands no signal on; and all that it makes is the user's."""
    host = lab.host("a")
    add_user(host)
    host.write("/usr/local/bin/apptainer", APPTAINER.replace('exec "$@"', '"$@" &\nwait'))
    host.run(["chmod", "755", "/usr/local/bin/apptainer"], check=True)
    host.run(["touch", "/srv/image.sif"], check=True)
    (laptop.folder / "job.py").write_text(LONG)
    at = ("--name", "lab", *naming(lab, host), "--container", "apptainer", "--image", "/srv/image.sif")
    done = laptop.run("up", "ssh", *at)
    assert done.returncode == 0, done.stderr
    done = laptop.run("run", "--detach", "--", "python3", "job.py")
    assert done.returncode == 0, done.stderr
    until(lambda: "on" in laptop.run("logs", "python3-1").stdout, "it is on")
    assert any("job.py" in line for line in host.processes())
    host.run(["kill", f"-{int(signal.SIGKILL)}", container_pid(host, what)], check=True)
    until(lambda: not any("job.py" in line for line in host.processes()), "its end")
    assert not host.run(["find", f"/home/{USER}", "!", "-user", USER]).stdout
    until(lambda: _is_home(laptop, "python3-1"), "its end is known")
    assert laptop.run("down", "lab").returncode == 0
    assert [path.read_text() for path in (laptop.folder / "runs").rglob("part.txt")] == ["half"]
