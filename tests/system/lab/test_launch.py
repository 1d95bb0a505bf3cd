"""Real hosts, real sshd, real torchrun, the script unchanged: the networks that break launches by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop, root

pytestmark = pytest.mark.real_torch

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
for _ in range(20):
    dist.all_reduce(total.fill_(1))
print("rank", dist.get_rank(), "of", int(total), "local", os.environ["LOCAL_RANK"], *sys.argv[1:], flush=True)
if dist.get_rank() == 0:
    torch.save({"total": total}, "model.pt")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def project(laptop: Laptop) -> Laptop:
    laptop.write("train.py", SCRIPT)
    return laptop


@pytest.mark.parametrize(
    "options",
    [
        {"names": "unresolvable", "docker0": True},
        pytest.param({"names": "127.0.1.1"}, marks=pytest.mark.proof),  # tests/system/export/test_hosts.py
        pytest.param({"names": "same"}, marks=pytest.mark.proof),  # resolved to oneself, as Debian's line is
        {"ipv6_only": True},
    ],
    ids=["names that resolve nowhere, and a docker0", "the 127.0.1.1 line of Debian", "one name for all", "IPv6 only"],
)
def test_two_hosts_train(lab: Lab, project: Laptop, options: dict[str, object]) -> None:
    """One rank on each: what costs time is how often torch is loaded, and how hosts meet is the same with one."""
    hosts = [lab.host(name, **options) for name in ("a", "b")]  # type: ignore[arg-type]
    words = ("train", "multinode", "--gpus", "1", "--on", "ssh", *project.naming(*hosts), "train.py")
    done = project.run(*words, "--", "50", "--x y")
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "] rank" in line) == [
        f"[n{rank} r{rank}] rank {rank} of 2 local 0 50 --x y" for rank in range(2)
    ]
    assert "all 2 ranks ended well" in done.stderr
    assert (project.folder / "runs/train-1/out/model.pt").stat().st_size > 0
    assert project.clusters() == []
    project.expect_hosts_clean(*hosts)


NVIDIA_SMI = """#!/bin/sh
[ "$1" = -L ] && exec seq -f "GPU %g: pretended" 0 $(({count} - 1))
for i in $(seq 0 $(({count} - 1))); do echo "$i, pretended, 24000, 550.54, 8.6"; done
"""


def test_three_hosts_of_unequal_rank_counts_and_one_home(lab: Lab, project: Laptop, tmp_path: Path) -> None:
    home = tmp_path / "shared-home"
    home.mkdir()
    hosts = [lab.host(name, home=home) for name in ("a", "b", "c")]
    for host, count in zip(hosts, (2, 1, 1), strict=True):
        program = root(host) / "usr/bin/nvidia-smi"
        program.write_text(NVIDIA_SMI.replace("{count}", str(count)))
        program.chmod(0o755)
    project.up(*hosts)
    done = project.run("train", "multinode", "train.py")
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "] rank" in line) == [
        "[n0 r0] rank 0 of 4 local 0",
        "[n0 r1] rank 1 of 4 local 1",
        "[n1 r2] rank 2 of 4 local 0",
        "[n2 r3] rank 3 of 4 local 0",
    ]
    assert project.run("down", "lab").returncode == 0
    project.expect_hosts_clean(*hosts)


@pytest.mark.proof  # without torch: tests/integration/cli/test_virtual.py; with it on several machines: test_virtual.py
def test_two_virtual_nodes_on_one_host(lab: Lab, project: Laptop) -> None:
    host = lab.host("a")
    two = ("train", "multinode", "--nodes", "2", "--gpus", "1")
    done = project.run(*two, "--on", "ssh", *project.naming(host), "train.py")
    assert done.returncode == 0, done.stderr
    assert "2 nodes on 1 host: virtual nodes" in done.stderr
    assert sorted(line.split("] ")[1] for line in done.stdout.splitlines() if "] rank" in line) == [
        f"rank {rank} of 2 local 0" for rank in range(2)
    ]
    project.expect_hosts_clean(host)


def test_a_blocked_port_is_said_at_once(lab: Lab, project: Laptop) -> None:
    a, b = lab.host("a"), lab.host("b")
    project.up(a, b)
    lab.block(a, "1-21, 23-65535")
    done = project.run("train", "multinode", "train.py")
    assert done.returncode == 4, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: node1 ")
    assert "cannot reach node0" in error
    assert a.address in error
    assert "no answer" in error
    assert hint.startswith("hint: ")
    lab.unblock(a)
    assert project.run("run", "--nodes", "2", "--all-nodes", "--", "true").returncode == 0
    assert project.run("down").returncode == 0
    project.expect_hosts_clean(a, b)


def test_hosts_without_rsync_and_torch_that_differs(lab: Lab, project: Laptop) -> None:
    a, b = lab.host("a", rsync=False), lab.host("b", rsync=False, torch=False)
    project.up(a, b)
    done = project.run("train", "multinode", "--python", "/opt/pytorch/bin/python", "train.py")
    assert done.returncode == 2, done.stderr
    assert "node1" in done.stderr.splitlines()[-2]
    assert project.run("run", "--all-nodes", "--", "cat", "train.py").stdout.count("init_process_group") == 2
    assert project.run("down").returncode == 0
    project.expect_hosts_clean(a, b)
