"""`train --on aws` from nothing to a receipt: instances with a system of their own, and what they are taken back by."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S, until
from tests.fakes.aws import FakeAWS, Instance
from tests.system.lab.available import why_no_machines
from tests.system.lab.laptop import Laptop

PROVE_S = 900
"""A hang guard, in seconds."""
PROGRAMS = Path(__file__).parents[3] / "train"
TRAIN = ("train", "multinode", "--on", "aws", "--nodes", "2", "--gpus", "1", "--gpu-type", "t4", "--spot", "--yes")
NETWORK = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", int(total), "meets at", os.environ["MASTER_ADDR"], flush=True)
if dist.get_rank() == 0:
    torch.save({"total": total}, "model.pt")
dist.barrier()
dist.destroy_process_group()
"""
PATIENT = """
import time
from pathlib import Path
import toy

last = Path("snapshots/toy/last")
done = int(last.read_text()[5:13]) if last.exists() else 0  # steps; each is an epoch here
write = toy.write

def slowly(line):
    write(line)
    time.sleep(0.3)

toy.write = slowly
options = toy.arguments("", 50, 10, 1024, toy.SEED)
toy.launch(toy.train, options.parse_args([str(done + 12 if done else 100_000), "EVERY"]))
"""
"""The workload toy with a step of 0.3 s: without an end at first, and for twelve steps more where it goes on."""
NEVER = 100_000


@pytest.fixture
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeAWS]:
    if reason := why_no_machines():
        pytest.skip(reason)
    laptop: Laptop = request.getfixturevalue("laptop")
    with FakeAWS(tmp_path / "aws", lab=laptop.lab) as fake:
        laptop.env.update(fake.env, HOME=str(tmp_path))
        yield fake
        laptop.end()


def expect_nothing_left(cloud: FakeAWS, laptop: Laptop) -> None:
    """Nobody has waited until AWS had shut down the machines, which takes minutes; then the rest goes, too."""
    assert laptop.clusters() == []
    assert {one.state for one in cloud.instances()} <= {"shutting-down"}
    cloud.advance(cloud.ending_s)
    assert laptop.run("reap", "--yes").returncode == 0
    assert cloud.left() == []


@pytest.mark.real_torch
def test_one_command_from_nothing_to_a_receipt(cloud: FakeAWS, laptop: Laptop) -> None:
    """SSH goes by public addresses, which the machines do not have of each other; what they train over is private."""
    laptop.write("train.py", NETWORK)
    done = laptop.run(*TRAIN, "train.py")
    assert done.returncode == 0, done.stderr
    head, _ = two = sorted(cloud.world.instances.values(), key=lambda one: one.launch_index)
    assert sorted(line for line in done.stdout.splitlines() if "meets" in line) == [
        f"[n{rank} r{rank}] rank {rank} of 2 meets at {head.private_address}" for rank in range(2)
    ]
    assert all(one.public and one.public != one.private_address for one in two)
    assert {(one.zone, one.type, one.market) for one in two} == {(head.zone, "g4dn.xlarge", "spot")}
    assert "not yet protected" in done.stderr
    assert "all 2 ranks ended well" in done.stderr
    assert "python: /opt/pytorch/bin/python" in done.stderr
    (model,) = laptop.folder.glob("runs/*/out/model.pt")
    assert model.stat().st_size > 0
    expect_nothing_left(cloud, laptop)


LAST = "runs/patient-1/out/snapshots/toy/last"
SAID = "runs/patient-1/logs/node0/rank0.out"


def begin(cloud: FakeAWS, laptop: Laptop, every: int = 8) -> tuple[subprocess.Popen[str], Instance]:
    """The patient toy, when its first snapshot is home, or its first word where it keeps none; and node1."""
    shutil.copytree(PROGRAMS / "ddp", laptop.folder / "ddp", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROGRAMS / "toy.py", laptop.folder)
    laptop.write("patient.py", PATIENT.replace("EVERY", str(every)))
    process = laptop.start(*TRAIN, "--retries", "1", "--json", "patient.py")
    home = laptop.folder / (SAID if every == NEVER else LAST)
    until(lambda: (home.exists() and home.stat().st_size) or process.poll() is not None, f"{home} is home")
    if process.poll() is not None:
        raise AssertionError(process.communicate()[1])
    (node1,) = (one for one in cloud.instances() if one.launch_index == 1)
    return process, node1


def ended(cloud: FakeAWS, laptop: Laptop, process: subprocess.Popen[str], first: str) -> dict[str, Any]:
    """What was lost, when the run that went on in another zone has ended; all of it is told and printed."""
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    document = json.loads(out)
    (loss,) = document["retries"]
    assert document["verdict"]["outcome"] == "done"
    assert (loss["run"], loss["place"], loss["node"]) == ("patient-1", first, 1)
    zones = {one.zone for one in cloud.world.instances.values()}
    assert len(zones) == 2, "it went on in another zone"
    resumed = laptop.folder / "runs/patient-2/logs/node0/rank0.out"
    at = re.search(r"resumed from snapshots/toy/step-(\d+)\.pt", resumed.read_text())
    assert at, resumed.read_text()
    assert int(at[1]) >= loss["saved"], "a node that is gone may have brought home more than it could still tell"
    expect_nothing_left(cloud, laptop)
    print(err)
    print(loss["say"])
    print(f"lost: {loss['steps_lost']} steps of {loss['step']}; {loss['gap_s']:.1f} s to the next new one")
    assert loss["gap_s"] > 0
    return dict(loss)


@pytest.mark.real_torch
@pytest.mark.proof  # test_crash_replaced.py does the same without torch, and loses an answer besides
def test_a_notice_moves_the_run_to_the_next_zone(cloud: FakeAWS, laptop: Laptop) -> None:
    """In the two minutes that are left it saves, stops, and its snapshot comes home: no step is lost."""
    process, node1 = begin(cloud, laptop)
    cloud.interrupt(node1.id)
    loss = ended(cloud, laptop, process, node1.zone)
    assert (loss["steps_lost"], loss["warned"]) == (0, True)
    assert loss["say"].startswith(f"reclaimed by AWS at step {loss['step']} (node1")


@pytest.mark.real_torch
@pytest.mark.proof
def test_machines_that_go_without_a_notice(cloud: FakeAWS, laptop: Laptop) -> None:
    """What came home while the run went on is what it goes on from."""
    process, node1 = begin(cloud, laptop)
    cloud.reclaim(node1.id)
    assert not ended(cloud, laptop, process, node1.zone)["warned"]


@pytest.mark.real_torch
@pytest.mark.proof  # what a hint asks for is in tests/integration/agent/test_node_preemption.py
def test_a_hint_keeps_a_snapshot_and_machines_that_go_then_have_lost_little(
    cloud: FakeAWS, laptop: Laptop, capsys: pytest.CaptureFixture[str]
) -> None:
    """The only one of a run that keeps none by itself: it comes home, and the next machines go on from there."""
    process, node1 = begin(cloud, laptop, every=NEVER)
    last, said = laptop.folder / LAST, laptop.folder / SAID
    cloud.rebalance(node1.id)
    until(
        lambda: (last.exists() and last.stat().st_size) or process.poll() is not None, "the snapshot asked for is home"
    )
    step = int(last.read_text()[5:13])
    until(lambda: said.read_text().count("Epoch") > step + 3 or process.poll() is not None, "it goes on")
    cloud.reclaim(node1.id)
    ended(cloud, laptop, process, node1.zone)
    assert "AWS may take node1 back soon; the run goes on; a snapshot was asked for" in capsys.readouterr().out
    resumed = (laptop.folder / "runs/patient-2/logs/node0/rank0.out").read_text()
    assert f"resumed from snapshots/toy/step-{step:08}.pt" in resumed


def test_a_machine_that_is_taken_back_while_it_boots(cloud: FakeAWS, laptop: Laptop) -> None:
    """The other one, which was a node by then perhaps, goes as well; and another zone is tried."""
    laptop.write("train.py", "print('trained')")
    cloud.mishaps[1] = "dead"
    process = laptop.start(*TRAIN, "--retries", "1", "--json", "train.py")
    until(lambda: len(cloud.instances()) == 2 or process.poll() is not None, "two machines")
    (node1,) = (one for one in cloud.instances() if one.launch_index == 1)
    until(lambda: node1.state == "running", "it is running, as AWS calls it")
    cloud.mishaps.clear()
    cloud.reclaim(node1.id)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    document = json.loads(out)
    (loss,) = document["retries"]
    assert (loss["run"], loss["place"], loss["node"], loss["started"]) == ("", node1.zone, 1, False)
    assert document["run"] == "train-1"
    assert len({one.zone for one in cloud.world.instances.values()}) == 2
    assert len(cloud.world.instances) == 4
    assert f"before   aws-1 was lost in {node1.zone} before its run began" in err
    assert "ended before it was ready: AWS took it back: " in err
    assert "aws-1 is undone, 2 machines still shut down, which costs nothing" in err
    expect_nothing_left(cloud, laptop)


@pytest.mark.real_torch
@pytest.mark.proof
@pytest.mark.timeout(PROVE_S + 60)
@pytest.mark.parametrize("machines", [("--nodes", "2", "--spot"), ("--cpu",)], ids=["spot", "cpu"])
def test_gpuops_prove_runs_against_instances(
    cloud: FakeAWS, laptop: Laptop, tmp_path: Path, capsys: pytest.CaptureFixture[str], machines: tuple[str, ...]
) -> None:
    """As against the real service, all of it."""
    cloud.ending_s = 0.1  # a proof waits for the end of all
    record = tmp_path / "record.json"
    process = laptop.start("prove", "aws", *machines, "--spend", "5", "--yes", "--record", str(record))
    out, err = process.communicate(timeout=PROVE_S)
    with capsys.disabled():
        print(f"\n{err}{out}")
    assert process.returncode == 0, err + out
    outcomes = {one["name"]: one["outcome"] for one in json.loads(record.read_text())["scenarios"]}
    assert set(outcomes.values()) == {"proven"}, outcomes
    assert cloud.left() == []
