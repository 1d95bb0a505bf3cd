"""What an image brings, and what a project asks for besides: in set-up, in runs and in `gpuops ssh`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HANG_S
from tests.fakes.aws import FakeAWS
from tests.fakes.runpod import FakeRunPod
from tests.fakes.runpod.images import OFFICIAL
from tests.system.lab.available import why_no_machines
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop
from tests.system.lab.projects import add_requirement, make_package

ASKED = ("PATH", "LD_LIBRARY_PATH", "HF_HOME", "PIP_BREAK_SYSTEM_PACKAGES", "RUNPOD_API_KEY", "PUBLIC_KEY")
SAY = "; ".join(f'echo "{name}=[${name}]"' for name in ASKED)


@pytest.fixture
def runpod(lab: Lab, laptop: Laptop, tmp_path: Path) -> Iterator[FakeRunPod]:
    with FakeRunPod(tmp_path / "runpod", lab=lab) as fake:
        laptop.env.update(fake.env)
        yield fake
        laptop.end()


@pytest.fixture
def aws(laptop: Laptop, tmp_path: Path) -> Iterator[FakeAWS]:
    if reason := why_no_machines():
        pytest.skip(reason)
    with FakeAWS(tmp_path / "aws", lab=laptop.lab) as fake:
        laptop.env.update(fake.env, HOME=str(tmp_path))
        yield fake
        laptop.end()


def up(laptop: Laptop, *provider: str) -> None:
    done = laptop.run("up", *provider, "--yes", "--name", "one")
    assert done.returncode == 0, done.stderr


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def imports(laptop: Laptop, *names: str) -> list[str]:
    """What a run says that imports these."""
    code = "; ".join(f"import {name}; print({name}.WORD)" for name in names)
    return said(laptop.run("run", "--", "python3", "-c", code)).split()


def is_the_images(text: str) -> bool:
    """Whether these are the answers to SAY that the image gives."""
    found = dict(line.partition("] ")[2].split("=", 1) if line[0] == "[" else line.split("=", 1)
                 for line in text.splitlines() if "=[" in line)  # fmt: skip
    path = found.pop("PATH").strip("[]").split(":")
    assert found == {name: f"[{OFFICIAL.env.get(name, '')}]" for name in ASKED[1:]}
    return "/usr/local/cuda/bin" in path


def test_set_up_runs_and_logins_see_what_the_image_brings(runpod: FakeRunPod, laptop: Laptop) -> None:
    """The service gives its image's ENV to the pod's first process alone."""
    up(laptop, "runpod", "--gpus", "1")
    (pod,) = runpod.running()
    assert pod.body.run(["sh", "-c", SAY]).stdout.count("=[]") == len(ASKED) - 1  # type: ignore[attr-defined]

    run = laptop.run("run", "--setup", f"({SAY}) >/srv/setup", "--", "sh", "-c", SAY)
    assert is_the_images(said(run))
    assert is_the_images(said(laptop.run("ssh", "one", "--", "cat", "/srv/setup")))
    assert is_the_images(said(laptop.run("ssh", "one", "--", "sh", "-c", SAY)))
    shell = laptop.start("ssh", "one", stdin=subprocess.PIPE)
    out, err = shell.communicate(f"{SAY}; pwd\n", timeout=HANG_S)
    assert is_the_images(out), err
    assert out.splitlines()[-1].endswith("/one/n0/project")


@pytest.mark.usefixtures("runpod")
def test_an_image_that_knows_nothing_of_runpod_brings_the_same(laptop: Laptop) -> None:
    """Where sshd is ours: it writes its title over its environment."""
    up(laptop, "runpod", "--gpus", "1", "--image", "debian:13")
    assert said(laptop.run("run", "--", "printenv", "HF_HOME")).endswith("/srv/models\n")
    assert said(laptop.run("ssh", "one", "--", "printenv", "HF_HOME")) == "/srv/models\n"


@pytest.mark.parametrize(
    "image",
    [
        pytest.param((), id="default", marks=pytest.mark.proof),
        pytest.param(("--image", "example/python3-only:1"), id="python3 only"),
    ],
)
def test_requirements_are_installed_on_a_pod(runpod: FakeRunPod, laptop: Laptop, image: tuple[str, ...]) -> None:
    """torch is in the system's Python, into which pip installs as the image lets it (PEP 668)."""
    up(laptop, "runpod", "--gpus", "1", *image)
    (pod,) = runpod.running()
    bare = pod.body.run(["python3", "-m", "pip", "install", "--no-index", "none"])  # type: ignore[attr-defined]
    assert "externally-managed-environment" in bare.stderr
    add_requirement(laptop, "first")
    assert imports(laptop, "first") == ["FIRST"]
    add_requirement(laptop, "second")
    assert imports(laptop, "first", "second") == ["FIRST", "SECOND"]


def test_the_projects_own_package_is_what_was_last_pushed_on_a_pod(runpod: FakeRunPod, laptop: Laptop) -> None:
    up(laptop, "runpod", "--gpus", "1")
    make_package(laptop, "old")
    assert imports(laptop, "own") == ["old"]
    make_package(laptop, "new")
    assert imports(laptop, "own") == ["new"]
    assert len(runpod.running()) == 1


def test_both_are_installed_on_an_image_for_training(aws: FakeAWS, laptop: Laptop) -> None:
    """There torch is in an environment, /opt/pytorch, which belongs to whoever logs in."""
    up(laptop, "aws", "--gpus", "1", "--gpu-type", "t4")
    add_requirement(laptop, "first")
    assert imports(laptop, "first") == ["FIRST"]
    (laptop.folder / "requirements.txt").unlink()
    make_package(laptop, "old")
    assert imports(laptop, "own") == ["old"]
    assert len(aws.left()) > 0
