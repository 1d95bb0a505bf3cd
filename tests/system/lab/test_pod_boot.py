"""What a pod runs first, in pods that are real machines: their first process, their sshd, their own end."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.provider import Context
from provisioners.kit import keys
from provisioners.kit.container_images import cuda_of
from provisioners.kit.rented import NewMachine
from provisioners.kit.ssh_machine import machine_resource
from provisioners.runpod import RunpodProvisioner, launch, machines, options
from tests.conftest import HANG_S, until
from tests.fakes.runpod import FakeRunPod, Pod
from tests.system.lab.available import why_no_lab
from tests.system.lab.hosts import Lab

pytestmark = pytest.mark.skipif(why_no_lab() is not None, reason=str(why_no_lab()))
IMAGES = [options.IMAGE, "debian:13", "example/non-root:1", "example/own-entrypoint:1"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab") / "lab") as one:
        yield one


@pytest.fixture(scope="module")
def fake(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRunPod]:
    with FakeRunPod(tmp_path_factory.mktemp("runpod"), lab=lab) as one:
        yield one


def told(lab: Lab, fake: FakeRunPod, lives_s: float) -> dict[str, str]:
    name, token = "gpuops-0a1b2c3d-lab-0", "t" * 32
    new = NewMachine(name, token, keys.generate_key_pair(), lab.login, "", time.time() + lives_s)
    return launch.pod_environment(new, fake.url)


def offered(image: str) -> dict[str, Any]:
    gpu = {"gpu": "NVIDIA GeForce RTX 4090", "count": 1, "cuda": cuda_of(image)}
    return {**gpu, "image": image, "cloud": "SECURE", "disk": 20, "volume": "", "centers": [], "nodes": 2}


def made(lab: Lab, fake: FakeRunPod, image: str, lives_s: float = 3600.0) -> Pod:
    spec = launch.PodSpec.parse(offered(image))
    body = dict(launch.pod_body("gpuops-0a1b2c3d-lab-0", spec, told(lab, fake, lives_s)))
    return fake.add_pod(body.pop("name"), **body)


def login(lab: Lab, pod: Pod, line: str, known: Path) -> subprocess.CompletedProcess[str]:
    """With the one host key that it was given, and no other."""
    known.write_text(f"pod {pod.env['GPUOPS_HOST_PUBLIC']}\n")
    return subprocess.run(
        [*lab.enter, "ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o",
         "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={known}", "-o", "HostKeyAlias=pod", "-o",
         "ConnectTimeout=30", "-o", "ServerAliveInterval=1", "-o",
         "ServerAliveCountMax=5", "-i", str(lab.identity), "-p", str(pod.port), f"root@{pod.address}", "--", line],
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("image", IMAGES)
def test_it_is_logged_in_to_by_the_keys_it_was_given(lab: Lab, fake: FakeRunPod, image: str, tmp_path: Path) -> None:
    pod = made(lab, fake, image)
    until(lambda: login(lab, pod, "true", tmp_path / "known").returncode == 0, f"a login: {pod.log}")
    ask = "tr '\\0' '\\n' </proc/1/environ; echo; cat /run/gpuops/end; kill -0 $(cat /run/gpuops/pid) && echo watched"
    said = login(lab, pod, ask, tmp_path / "known").stdout
    assert "GPUOPS_HOST_KEY" not in said
    assert f"\n{pod.env['GPUOPS_END']}\nwatched\n" in said
    words = login(lab, pod, "cat /proc/*/cmdline | tr '\\0' ' '", tmp_path / "known").stdout
    assert "sshd" in words
    assert pod.key not in words
    assert pod.env["GPUOPS_HOST_KEY"] not in words


@pytest.mark.parametrize("image", IMAGES)
def test_nobody_comes_and_its_boot_lease_ends_it(lab: Lab, fake: FakeRunPod, image: str) -> None:
    pod = made(lab, fake, image, lives_s=2.0)
    until(lambda: not fake.pods[pod.id].bills, f"it ends itself: {pod.log}")


@pytest.mark.parametrize("image", IMAGES)
def test_it_ends_though_a_program_in_it_killed_all_others(
    lab: Lab, fake: FakeRunPod, image: str, tmp_path: Path
) -> None:
    """`kill -9 -1`, and nobody comes back: its first process goes on, and has to end with what it had started."""
    pod = made(lab, fake, image)
    until(lambda: login(lab, pod, "true", tmp_path / "known").returncode == 0, f"a login: {pod.log}")
    login(lab, pod, f"echo {int(time.time()) + 8} >/run/gpuops/end; kill -9 -1", tmp_path / "known")
    assert fake.pods[pod.id].bills
    until(lambda: not fake.pods[pod.id].bills, f"it ends itself: {pod.log}")


@pytest.mark.parametrize("image", IMAGES)
def test_a_node_ends_its_pod(lab: Lab, fake: FakeRunPod, image: str, tmp_path: Path) -> None:
    pod = made(lab, fake, image)
    until(lambda: login(lab, pod, "true", tmp_path / "known").returncode == 0, f"a login: {pod.log}")
    runpod = RunpodProvisioner(Context("0a1b2c3d", tmp_path, fake.env))
    machine = machine_resource(machines.parse_pod({"id": pod.id, "env": pod.env}), tmp_path, {})
    line = shlex.join(runpod.self_destruct(machine))
    login(lab, pod, line, tmp_path / "known")
    until(lambda: not fake.pods[pod.id].bills, "it ends itself")


def test_members_of_a_cluster_are_logged_in_to(lab: Lab, fake: FakeRunPod, tmp_path: Path) -> None:
    env = {**told(lab, fake, 3600.0), launch.MARK: "gpuops-0a1b2c3d-lab-"}
    spec = launch.PodSpec.parse({**offered(IMAGES[0]), "gpu": "NVIDIA H100 80GB HBM3"})
    body = dict(launch.cluster_body("gpuops-0a1b2c3d-lab-cluster", spec, env))
    members = fake.add_cluster(body.pop("name"), **body).members
    for pod in members:
        until(lambda pod=pod: login(lab, pod, "true", tmp_path / "known").returncode == 0, f"a login: {pod.log}")
        assert login(lab, pod, "hostname", tmp_path / "known").stdout == f"node-{members.index(pod)}\n"
