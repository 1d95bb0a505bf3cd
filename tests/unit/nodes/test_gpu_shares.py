"""Nodes beyond a cluster's machines: which machine bears them, what each has of it, and what they may not hold up."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.agent.daemon import watchdog
from gpuops.agent.node import Node, write_json
from gpuops.clusters import virtual_nodes
from gpuops.core.errors import NodeRefused, UsageError
from gpuops.core.models import Lease, Resource
from gpuops.core.run_models import RunRequest
from gpuops.ledger.store import Ledger
from gpuops.nodes import session
from gpuops.nodes.gpu_shares import (
    count_gpus,
    describe_shares,
    fold_virtual,
    host_index,
    is_virtual,
    share_gpus,
    with_virtual,
)
from tests.unit.ledger.test_store import intend


def machine(index: int = 0, **data: Any) -> Resource:
    where = {"connection": "process", "root": "/r", "python": "/p", "artefact": "a"}
    return Resource(
        "machine", f"id{index}", "there", f"gpuops-x-lab-{index}", True, per_hour=2.0, data={**where, **data}
    )


def numbered(gpus: int) -> list[str]:
    return [str(index) for index in range(gpus)]


def test_machines_bear_further_nodes_in_turn() -> None:
    nodes = with_virtual([machine(0, gpus=["0"]), machine(1)], 5)
    assert [host_index(one, index) for index, one in enumerate(nodes)] == [0, 1, 0, 1, 0]
    assert [is_virtual(one) for one in nodes] == [False, False, True, True, True]
    assert [one.name for one in nodes] == [f"gpuops-x-lab-{index}" for index in range(5)]
    assert [one.per_hour for one in nodes] == [2.0, 2.0, 0.0, 0.0, 0.0], "a machine is paid once"
    assert nodes[2].id == "id0", "its provider is asked for the machine"
    assert "gpus" not in nodes[2].data


def test_a_batch_systems_machine_is_one_node() -> None:
    """What makes another would begin beside its job, on the login node."""
    machines = [machine(0, inside_modes=["connect"]), machine(1, inside_modes=["connect"])]
    live = session.ClusterSession(cast(Any, SimpleNamespace(name="lab", provider="slurm")), machines)
    request = RunRequest(kind="torchrun", mode="multinode", nodes=3, gpus=None)
    with pytest.raises(UsageError, match="lab has 2 machines, each of which is one node of its job, and 3 nodes were"):
        virtual_nodes.add_virtual_nodes(cast(Any, None), live, request)
    virtual_nodes.add_virtual_nodes(cast(Any, None), live, replace(request, nodes=2))
    gpus = [numbered(4), numbered(4)]
    assert count_gpus(machines, gpus) == [0, 0]
    assert count_gpus([machine(0), machine(1, gpus=["1", "3"])], gpus) == [4, 2]


def test_what_a_machine_lists_is_there_without_being_asked_for() -> None:
    machines = [machine(0, virtual=[2]), machine(1, virtual=[3])]
    assert len(with_virtual(machines)) == 4
    assert len(with_virtual(machines, 2)) == 4
    assert [one.name[-1] for one in with_virtual(machines, 5)] == list("01234")
    assert "virtual" not in with_virtual(machines)[2].data
    assert with_virtual([], 2) == []


def test_what_a_provider_lists_becomes_machines_that_list_their_nodes() -> None:
    nodes = with_virtual([machine(0, on=None), machine(1, on=None)], 5)
    machines = fold_virtual(nodes)
    assert [one.data.get("virtual") for one in machines] == [[2, 4], [3]]
    assert [one.name for one in with_virtual(machines)] == [one.name for one in nodes]
    assert fold_virtual([machine(0), machine(1)]) == [machine(0), machine(1)]


@pytest.mark.parametrize(
    ("there", "nodes", "wanted", "shares", "said"),
    [
        (4, 2, None, [["0", "1"], ["2", "3"]], []),
        (4, 2, 1, [["0"], ["1"]], []),
        (4, 3, None, [["0"], ["1"], ["2"]],
         ["4 GPUs do not divide among 3 nodes: 1 of the machine of node0 is not used"]),
        (1, 2, None, [[], []], ["the machine of node0 has 1 GPU for 2 nodes, so the ranks run on the CPU"]),
        (0, 2, None, [[], []], []),
        (4, 1, None, [None], []),
    ],
)  # fmt: skip
def test_gpus_are_divided_among_the_nodes_of_a_run(
    there: int, nodes: int, wanted: int | None, shares: list[list[str] | None], said: list[str]
) -> None:
    given, notes = share_gpus(with_virtual([machine()], nodes), [numbered(there)], wanted)
    assert [lot.gpus for lot in given] == shares
    assert notes == said
    assert [lot.cores_share for lot in given] == [1 / nodes] * nodes


def test_only_what_the_cluster_may_use_is_divided() -> None:
    given, _ = share_gpus(with_virtual([machine(gpus=[3, 5], cores_share=0.5)], 2), [numbered(8)], None)
    assert [(lot.gpus, lot.count, lot.cores_share) for lot in given] == [(["3"], 1, 0.25), (["5"], 1, 0.25)]
    (alone,) = share_gpus([machine(gpus=["3", "5"])], [numbered(8)], None)[0]
    assert (alone.gpus, alone.count) == (["3", "5"], 2)


def test_each_machine_divides_its_own() -> None:
    given, _ = share_gpus(with_virtual([machine(0), machine(1)], 3), [numbered(4), numbered(4)], None)
    assert [(lot.gpus, lot.count) for lot in given] == [(["0", "1"], 2), (None, 4), (["2", "3"], 2)]
    assert describe_shares(given, 2) == "3 nodes on 2 machines: virtual nodes, 2, 4 and 2 GPUs"


@pytest.mark.parametrize(
    ("there", "nodes", "wanted", "say", "hint"),
    [
        (4, 2, 4, "2 nodes with 4 GPUs each need 8, the machine of node0 has 4", "ask for --gpus 2"),
        (0, 200, None, "200 nodes are more than the machine of node0 can bear, at most 128", "ask for fewer --nodes"),
    ],
)
def test_what_a_machine_does_not_have_is_refused(
    there: int, nodes: int, wanted: int | None, say: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        share_gpus(with_virtual([machine()], nodes), [numbered(there)], wanted)
    assert caught.value.message == say
    assert hint in caught.value.hint


def test_it_is_said() -> None:
    def said(gpus: int) -> str:
        return describe_shares(share_gpus(with_virtual([machine()], 2), [numbered(gpus)], None)[0], 1)

    assert said(4) == "2 nodes on 1 machine: virtual nodes, 2 GPUs each"
    assert said(2) == "2 nodes on 1 machine: virtual nodes, 1 GPU each"
    assert said(0) == "2 nodes on 1 machine: virtual nodes, which share cores, memory and disk"


def test_the_ledger_remembers_all_that_were_ever_made(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    row = intend(ledger)
    ledger.got(row, machine())
    ledger.add_virtual_nodes(row, machine(), [1])
    ledger.add_virtual_nodes(row, machine(), [3, 1])
    (known,) = ledger.resources(row)
    assert known == machine(virtual=[1, 3])


def test_its_token_and_mark_are_the_clusters() -> None:
    clock = SimpleNamespace(now=lambda: 100.0)
    world: Any = SimpleNamespace(owner="x", clock=clock)
    row: Any = SimpleNamespace(name="lab", token="abc", lease=Lease(hard_end=160.0, idle_s=30.0))
    (_, node) = with_virtual([machine()], 2)
    made = virtual_nodes.init_document(world, row, node, 1)
    assert made["lease"] == {"ends_in": 60.0, "idle_s": None}
    assert (made["node"]["mark"], made["node"]["token"], made["node"]["on"]) == ("gpuops-x-lab-1", "abc-v1", 0)
    row.lease = Lease()
    assert virtual_nodes.init_document(world, row, node, 1)["lease"]["ends_in"] is None


class Talking:
    """An agent of which all is known that is asked here."""

    def __init__(self) -> None:
        self.connection = SimpleNamespace(close=lambda: None)
        self.heard: list[dict[str, Any]] = []

    def close(self) -> None:
        """Nothing is open."""

    def call(self, _verb: str, **args: Any) -> dict[str, Any]:
        self.heard.append(args)
        return {}


def refusing(kind: str, *indices: int) -> Any:
    def meet(_row: Any, _machine: Resource, index: int, **_: Any) -> Any:
        if index in indices:
            raise NodeRefused("this node has ended", "", kind)
        return Talking(), {"busy": None}, 0.0

    return meet


def test_a_virtual_node_that_is_over_keeps_nobody_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    row: Any = SimpleNamespace(name="lab")
    nodes = with_virtual([machine()], 3)
    monkeypatch.setattr(session, "contact_node", refusing("ended", 1))
    found = session.contact_cluster(row, nodes)
    assert len(found.present()) == 2
    session.send_lease(found, Lease(idle_s=60.0), 0.0)
    assert [client.heard for client in found.present()] == [  # type: ignore[attr-defined]
        [{"ends_in": None, "idle_s": 60.0}], [{"ends_in": None, "idle_s": None}],
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "index"), [("ended", 0), ("protocol", 1)])
def test_any_other_failure_is_raised(monkeypatch: pytest.MonkeyPatch, kind: str, index: int) -> None:
    row: Any = SimpleNamespace(name="lab")
    monkeypatch.setattr(session, "contact_node", refusing(kind, index))
    with pytest.raises(NodeRefused):
        session.contact_cluster(row, with_virtual([machine()], 2))
    assert len(session.contact_cluster(row, with_virtual([machine()], 2), some=True).present()) == 1


def test_what_it_holds_holds_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that nobody has fetched would be gone with it."""
    monkeypatch.setattr(watchdog, "Wake", list)  # no signal of this process is a watchdog's
    nodes = [Node(str(tmp_path / f"lab/n{index}")) for index in range(3)]
    for index, settings in enumerate([{"index": 0}, {"index": 1, "on": 0}, {"index": 2}]):
        os.makedirs(nodes[index].dir)
        write_json(nodes[index].path("node.json"), settings)
    own, beside, another = (watchdog.Watchdog(node) for node in nodes)
    assert [one.dir for one in nodes[0].virtual_nodes()] == [nodes[1].dir]
    assert nodes[1].virtual_nodes() == nodes[2].virtual_nodes() == []
    run = Path(nodes[1].run("a-1"))
    run.mkdir(parents=True)
    (run / "spec.json").write_text('{"hold_s": 60}')
    (run / "result.json").write_text('{"reason": {"kind": "command"}}')
    assert [one._hold_s() for one in (own, beside, another)] == [60.0, 60.0, None]
    (run / "home.json").write_text("{}")
    assert own._hold_s() is None
    assert not own._has_host_ended()
    assert not beside._has_host_ended()
    write_json(nodes[0].path("ended.json"), {"why": "x"})
    assert beside._has_host_ended()
    shutil.rmtree(tmp_path / "lab")
    assert beside._has_host_ended() is False, "it is not there itself, which is said elsewhere"
    assert own._hold_s() is None


def test_its_use_is_use_of_its_machine(tmp_path: Path) -> None:
    """Else the machine might end for want of use while a virtual node on it works."""
    own, beside = Node(str(tmp_path / "lab/n0")), Node(str(tmp_path / "lab/n1"))
    for node, settings in ((own, {}), (beside, {"on": 0})):
        os.makedirs(node.dir)
        write_json(node.path("node.json"), settings)
        node.touch()
        os.utime(node.path("activity"), (1.0, 1.0))
    began = time.time() - 10
    beside.touch()
    assert os.stat(own.path("activity")).st_mtime > began
    os.utime(beside.path("activity"), (1.0, 1.0))
    own.touch()
    assert os.stat(beside.path("activity")).st_mtime == 1.0
