"""Lambda in a lab: a run from nothing to gone, what the machine is told meanwhile, and a command that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HANG_S, until
from tests.fakes.lambdacloud import FakeLambda
from tests.fakes.lambdacloud.fake import Request
from tests.system.lab.available import why_no_machines
from tests.system.lab.laptop import Laptop

RUN = ("run", "--on", "lambda", "--gpus", "1", "--yes", "--", "sh", "-c")


@pytest.fixture
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeLambda]:
    if reason := why_no_machines():
        pytest.skip(reason)
    laptop: Laptop = request.getfixturevalue("laptop")
    with FakeLambda(tmp_path / "lambda", lab=laptop.lab) as fake:
        laptop.env.update(fake.env, HOME=str(tmp_path))
        yield fake
        laptop.end()


def test_a_run_from_nothing_to_gone_with_no_secret_on_its_machine(cloud: FakeLambda, laptop: Laptop) -> None:
    seen: list[str] = []

    def look(request: Request, moment: str) -> None:
        """While the machine is there, just before its end is asked for."""
        if moment == "before" and request.path.endswith("/terminate") and not seen:
            (one,) = cloud.running()
            search = ["grep", "-rlsF", "-e", cloud.key, "-e", "a-secret-of-jupyter", "/home", "/root", "/etc", "/run"]
            seen.append(cloud.machines.run(one.id, search).stdout)
            seen.append(cloud.machines.run(one.id, ["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout)

    cloud.callbacks.append(look)
    done = laptop.run(*RUN, "id -un; echo $NCCL_NET; echo done >out.txt")
    assert done.returncode == 0, done.stderr
    assert "ubuntu" in done.stdout
    assert "Socket" in done.stdout
    assert "these machines cannot end themselves" in done.stderr
    (one,) = cloud.instances.values()
    assert cloud.running() == []
    found, host_key = seen
    assert found == ""
    assert host_key.split()[:2] != one.tags["gpuops:host-key"].split()[:2], (
        "it went through the provider, and is replaced"
    )
    kept = subprocess.run(
        ["grep", "-rlsF", "-e", cloud.key, "-e", "a-secret-of-jupyter", str(laptop.home)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert kept.stdout == ""


@pytest.mark.proof
def test_a_command_that_is_killed_before_it_hears_of_its_machine(cloud: FakeLambda, laptop: Laptop) -> None:
    """The guard finds it by its mark, and ends it."""

    def kill(request: Request, moment: str) -> None:
        if moment == "after" and request.path.endswith("/launch"):
            request.lose()
            os.kill(request.client_pid, signal.SIGKILL)

    cloud.callbacks.append(kill)
    done = laptop.run(*RUN, "true")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(cloud.running()) == 1
    until(lambda: not cloud.running(), "the guard ends it", HANG_S)
