"""`train --on runpod` from nothing to a receipt: a fake RunPod whose pods are real machines with real sshd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import until
from tests.fakes.runpod import FakeRunPod
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop

pytestmark = pytest.mark.real_torch

PROVE_S = 280
"""A hang guard, in seconds."""
NETWORK = """
import os
rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
print("rank", rank, "of", world, "over", os.environ["GLOO_SOCKET_IFNAME"], flush=True)
if local == 0:  # a rank of each node does, to show that they meet: what costs time is how often torch is loaded
    import torch, torch.distributed as dist
    dist.init_process_group("gloo", rank=rank // 8, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    print("nodes that met:", int(total), flush=True)
    dist.destroy_process_group()
"""
SCRIPT = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", int(total), "local", os.environ["LOCAL_RANK"], *sys.argv[1:], flush=True)
if dist.get_rank() == 0:
    torch.save({"total": total}, "model.pt")
dist.barrier()
dist.destroy_process_group()
"""

SLOW = """
import os, time
while not os.path.exists("/srv/go-on"):
    time.sleep(0.1)
open("model.pt", "w").write("learnt")
print("done")
"""


@pytest.fixture
def cloud(lab: Lab, laptop: Laptop, tmp_path: Path) -> Iterator[FakeRunPod]:
    with FakeRunPod(tmp_path / "runpod", lab=lab) as fake:
        laptop.env.update(fake.env)
        laptop.write("train.py", SCRIPT)
        laptop.write("network.py", NETWORK)
        yield fake
        laptop.end()


def test_one_command_from_nothing_to_a_receipt(cloud: FakeRunPod, laptop: Laptop) -> None:
    done = laptop.run("train", "multigpu", "--on", "runpod", "--gpus", "2", "--yes", "train.py", "--", "50", "10")
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "rank" in line) == [
        f"[n0 r{rank}] rank {rank} of 2 local {rank} 50 10" for rank in range(2)
    ]
    assert "not yet protected" in done.stderr
    assert cloud.running() == []
    (model,) = laptop.folder.glob("runs/*/out/model.pt")
    assert model.stat().st_size > 0


@pytest.mark.proof  # test_virtual.py has two on one rented machine, and trains on two that have two each
def test_two_virtual_nodes_on_one_pod(cloud: FakeRunPod, laptop: Laptop) -> None:
    """What most readers of a tutorial can afford."""
    up = laptop.run("up", "runpod", "--gpus", "4", "--yes", "--name", "pod")
    assert up.returncode == 0, up.stderr
    (pod,) = cloud.running()
    assert "pod is up: 1 node" in up.stdout
    done = laptop.run("train", "multinode", "--nodes", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert "virtual nodes" in done.stderr
    assert [pod] == cloud.running()
    status = laptop.run("status", "--cloud")
    assert "pod" in status.stdout
    assert status.returncode == 0, status.stderr
    down = laptop.run("down")
    assert down.returncode == 0, down.stderr
    assert cloud.running() == []


@pytest.mark.proof
def test_gpuops_prove_runs_against_pods(cloud: FakeRunPod, laptop: Laptop, tmp_path: Path) -> None:
    """As against the real service, with money for what needs one pod (tests/system/contract runs all of it)."""
    record = tmp_path / "record.json"
    process = laptop.start("prove", "runpod", "--spend", "0.015", "--yes", "--record", str(record))
    out, err = process.communicate(timeout=PROVE_S)
    assert process.returncode == 0, err + out
    outcomes = {one["name"]: one["outcome"] for one in json.loads(record.read_text())["scenarios"]}
    assert "failed" not in outcomes.values(), outcomes
    assert [outcomes[name] for name in ("create", "list", "describe", "destroy", "gone", "nothing-left")] == [
        "proven"
    ] * 6
    assert cloud.running() == []


def test_two_machines_are_a_cluster_whose_fast_network_is_used(cloud: FakeRunPod, laptop: Laptop) -> None:
    done = laptop.run(
        "train", "multinode", "--on", "runpod", "--nodes", "2", "--gpus", "8", "--gpu-type", "h100 sxm", "--yes",
        "network.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {line for line in done.stdout.splitlines() if "over" in line} == {
        f"[n{rank // 8} r{rank}] rank {rank} of 16 over ens1" for rank in range(16)
    }
    assert sum(line.endswith("nodes that met: 2") for line in done.stdout.splitlines()) == 2
    assert "the guard on this computer does" in done.stderr  # nobody knows whether a member may end its cluster
    assert cloud.running() == []
    assert [one.method for one in cloud.asked("POST", "/clusters")] == ["POST"]


def test_a_volume_keeps_the_results_of_a_run_that_nobody_waits_for(cloud: FakeRunPod, lab: Lab, laptop: Laptop) -> None:
    """The laptop starts it and is gone: the pod brings all to the volume, and ends itself."""
    volume = cloud.add_volume("results", "EU-RO-1")
    laptop.write("slow.py", SLOW)
    done = laptop.run(
        "run", "--on", "runpod", "--region", "EU-RO-1", "--sink", "volume:results", "--yes", "--detach", "--",
        "python3", "slow.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (pod,) = cloud.running()
    laptop.die()
    pod.body.run(["touch", "/srv/go-on"], check=True)  # type: ignore[attr-defined]
    until(lambda: cloud.running() == [], "the pod ends itself")
    folder = lab.disks / "volumes" / volume.id / "gpuops"
    assert [path.read_text() for path in folder.rglob("model.pt")] == ["learnt"]
    assert [path.parent.name for path in folder.rglob("safe.json")] == ["node0"]
    assert b"done\n" in b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert pod.name in [one.name for one in cloud.pods.values()]
