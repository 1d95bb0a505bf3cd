"""One machine that was rented, two nodes on it: they are paid once, probed with the others, and gone with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import until
from tests.fakes import landlord
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Laptop, ours, root

TELLS = ("--", "sh", "-c", "echo $GPUOPS_NODE_RANK of $GPUOPS_NODES, head $GPUOPS_HEAD; echo x > $GPUOPS_NODE_RANK.pt")

RANKS = """
import os
rank = int(os.environ["RANK"])
print("rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
"""


@pytest.fixture
def houses(lab: Lab, laptop: Laptop, tmp_path: Path) -> Any:
    """`houses(n)`: so many hosts to be let."""
    folder = tmp_path / "landlord"
    folder.mkdir()
    laptop.env["LANDLORD"] = str(folder)
    laptop.env["PYTHONPATH"] = ":".join(landlord.settle(tmp_path / "site"))

    def build(count: int) -> list[Host]:
        hosts = [lab.host(f"h{number}") for number in range(count)]
        (folder / "houses.json").write_text(json.dumps([
            {"address": host.address, "port": host.port, "host_key": " ".join(host.host_key.split()[:2]),
             "identity": str(lab.identity)}
            for host in hosts
        ]))  # fmt: skip
        return hosts

    return build


def told(laptop: Laptop, run: str) -> list[str]:
    logs = (laptop.folder / "runs" / run / "logs").glob("*/launcher.out")
    return [path.read_text().partition(",")[0] for path in sorted(logs)]


def test_two_nodes_on_one_rented_machine(laptop: Laptop, houses: Any) -> None:
    (host,) = houses(1)
    up = laptop.run("up", "landlord", "--name", "lab", "--yes")
    assert up.returncode == 0, up.stderr
    two = laptop.run("run", "--all-nodes", "--nodes", "2", *TELLS)
    assert two.returncode == 0, two.stderr
    assert "2 nodes on 1 machine: virtual nodes, which share cores, memory and disk" in two.stderr.splitlines()
    assert told(laptop, "sh-1") == ["0 of 2", "1 of 2"]
    assert sorted(path.name for path in (laptop.folder / "runs/sh-1/out").glob("*.pt")) == ["0.pt", "1.pt"]
    record = json.loads((laptop.folder / "runs/sh-1/run.json").read_text())
    assert record["per_hour"] == landlord.PER_HOUR, "the machine is paid once"
    (cluster,) = laptop.clusters()
    assert (cluster["per_hour"], len(cluster["nodes"])) == (landlord.PER_HOUR, 2)
    (lease,) = root(host).glob("root/.gpuops-*/lab/n1/lease.json")
    kept = json.loads(lease.read_text())
    assert kept["hard_wall"], "its end is the cluster's"
    assert kept["idle_s"] is None, "the machine's own node decides what is idle"

    (laptop.home / "ledger.db").unlink()
    back = laptop.run("reap", "--adopt")
    assert "lab is back: 1 node on landlord" in back.stdout + back.stderr
    assert "sh-1 had ended" in back.stdout + back.stderr
    assert len(laptop.clusters()[0]["nodes"]) == 2
    again = laptop.run("run", "--all-nodes", "--nodes", "2", *TELLS)
    assert again.returncode == 0, again.stderr

    assert laptop.run("down", "lab").returncode == 0
    assert not list((Path(laptop.env["LANDLORD"]) / "let").iterdir())


def test_four_nodes_on_two_machines(laptop: Laptop, houses: Any) -> None:
    houses(2)
    up = laptop.run("up", "landlord", "--name", "lab", "--yes", "--nodes", "2")
    assert up.returncode == 0, up.stderr
    four = laptop.run("run", "--all-nodes", "--nodes", "4", *TELLS)
    assert four.returncode == 0, four.stderr
    assert "4 nodes on 2 machines: virtual nodes, which share cores, memory and disk" in four.stderr.splitlines()
    assert "network: " in four.stderr
    assert told(laptop, "sh-1") == [f"{index} of 4" for index in range(4)]
    heads = {path.read_text().split()[-1] for path in (laptop.folder / "runs/sh-1/logs").glob("*/launcher.out")}
    assert len(heads) == 1
    laptop.write("ranks.py", RANKS)
    trained = laptop.run("train", "multinode", "--nodes", "4", "--gpus", "1", "ranks.py")
    assert trained.returncode == 0, trained.stderr
    assert "all 4 ranks ended well" in trained.stderr
    assert {line for line in trained.stdout.splitlines() if "rank" in line} == {
        f"[n{rank} r{rank}] rank {rank} of 4" for rank in range(4)
    }
    assert laptop.run("down", "lab").returncode == 0


def test_an_end_of_the_machines_node_is_that_of_those_beside_it(laptop: Laptop, houses: Any) -> None:
    (host,) = houses(1)
    assert laptop.run("up", "landlord", "--name", "lab", "--yes", "--idle", "0.4").returncode == 0
    two = laptop.run("run", "--all-nodes", "--nodes", "2", *TELLS)
    assert two.returncode == 0, two.stderr
    until(lambda: (root(host) / "srv/ended").exists(), "the node asks for its machine's end")
    until(lambda: not ours(host) & {"watchdog", "agent"}, f"nothing stays beside it, but: {ours(host)}")
