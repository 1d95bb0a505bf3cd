"""Several nodes: one cluster at RunPod, whose members are the machines."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import NoCapacity, Rejected, Unknown, UsageError
from gpuops.core.models import Intent, Request, Resource
from gpuops.core.provider import Context
from provisioners.runpod import RunpodProvisioner, machines, options
from tests.fakes.runpod import FakeRunPod, Fault, Life
from tests.fakes.runpod.faults import capacity, leaving_members, lost_create
from tests.fakes.runpod.service import NETWORK
from tests.integration.provisioners.runpod.test_provisioner import OWNER, TOKEN, Lines

AT_ONCE = Life(assign_s=0, pull_s=0, map_s=0, ranked_s=0)
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeRunPod]:
    with FakeRunPod(tmp_path / "runpod") as one:
        one.life = AT_ONCE
        yield one


@pytest.fixture
def runpod(fake: FakeRunPod, tmp_path: Path) -> RunpodProvisioner:
    return RunpodProvisioner(Context(OWNER, tmp_path / "home", fake.env))


def asked(**wish: Any) -> Request:
    return Request("runpod", **{"nodes": 2, "gpus": 2, "gpu_type": "h100 sxm", **wish})


def intended() -> Intent:
    return Intent(OWNER, "lab", TOKEN, time.time() + 900, Path("abc.pyz"))


def made(runpod: RunpodProvisioner, lines: Lines | None = None, **wish: Any) -> list[Resource]:
    return list(runpod.create(runpod.offers(asked(**wish))[0], intended(), lines or Lines()))


def by_kind(found: Any) -> dict[str, list[Resource]]:
    return {kind: [one for one in found if one.kind == kind] for kind in ("cluster", "machine", "member")}


def test_a_cluster_is_asked_for_once(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    lines = Lines()
    offer = runpod.offers(asked(region="US-KS-2"))[0]
    assert offer.say.startswith("2 pods in one cluster, each 2 x H100 SXM (80 GB each), secure cloud, US-KS-2")
    assert offer.per_hour == pytest.approx(2 * 2 * 3.29 + 200 * 0.10 / 720), "what a cluster costs, not a pod"
    whole, *machines = runpod.create(offer, intended(), lines)
    (request,) = fake.asked("POST", "/clusters")
    assert request.body["compute"] == {"gpuTypeId": H100, "gpuCountPerPod": 2, "podCount": 2}
    assert request.body["dataCenterIds"] == ["US-KS-2"]
    assert request.body["env"]["GPUOPS_MARK"] == f"gpuops-{OWNER}-lab-"
    assert "cloud" not in request.body
    assert (whole.kind, whole.name) == ("cluster", f"gpuops-{OWNER}-lab-cluster")
    assert whole.data["machines"] == 2, "which are awaited"
    assert [one.name for one in machines] == [f"gpuops-{OWNER}-lab-{index}" for index in range(2)]
    assert [one.data["token"] for one in machines] == [f"{TOKEN}-0", f"{TOKEN}-1"]
    assert {one.parent for one in machines} == {whole.id}
    assert [one.private_address for one in machines] == [pod.ip for pod in fake.clusters[whole.id].members]
    network = 2 * 2 * NETWORK
    assert sum(one.per_hour for one in machines) == pytest.approx(offer.per_hour + network, rel=0.001)
    assert request.body["image"] == options.CLUSTER_IMAGE
    assert runpod.offers(asked(image="x/y:cu128"))[0].data["image"] == "x/y:cu128"
    willed = [line[1:] for line in lines.lines if line[0] == "will"]
    assert willed == [
        ("cluster", whole.name, f"{TOKEN}-all", "runpod"),
        *(("machine", one.name, f"{TOKEN}-{index}", "runpod") for index, one in enumerate(machines)),
    ]
    assert [line[1].id for line in lines.lines if line[0] == "got"] == [whole.id, *(one.id for one in machines)]


@pytest.mark.parametrize("fault", [
    Fault("POST /graphql", status=404, times=None), Fault("POST /graphql", cut=True, times=None),
    Fault("POST /graphql", status=200, raw="[]", times=None),
    Fault("POST /graphql", status=200, raw='{"data": {"gpuTypes": 7}}', times=None),
])  # fmt: skip
def test_where_no_clusters_price_is_told_that_is_said(
    runpod: RunpodProvisioner, fake: FakeRunPod, fault: Fault
) -> None:
    """The older interface alone tells it, and ends."""
    fake.play(fault)
    offer = runpod.offers(asked())[0]
    assert offer.per_hour == pytest.approx(2 * 2 * 2.99 + 200 * 0.10 / 720)
    assert any("this is the price of single pods" in note for note in offer.notes)
    assert all("single pods" not in note for note in runpod.offers(asked(nodes=1))[0].notes)


def test_machines_whose_driver_is_too_old_are_no_cluster(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    """A cluster cannot be asked for with a driver; the catalog tells where they are new enough."""
    fake.cuda.update({one: ["12.4"] for one in fake.cuda})
    with pytest.raises(NoCapacity):
        runpod.offers(asked())
    assert runpod.offers(asked(image="x/y:cu124"))


def test_a_cluster_is_found_with_its_members_in_order(runpod: RunpodProvisioner) -> None:
    whole, *machines = made(runpod)
    found = by_kind(runpod.list_owned(OWNER, []))
    assert [one.id for one in found["cluster"]] == [whole.id]
    assert {one.name: one.id for one in found["machine"]} == {one.name: one.id for one in machines}
    assert {one.data["token"] for one in found["machine"]} == {f"{TOKEN}-0", f"{TOKEN}-1"}
    assert str(found["cluster"][0].data["token"]).startswith(TOKEN)
    for one in (whole, *machines):
        seen = runpod.describe(one)
        assert (seen.kind, seen.id, seen.name, seen.state) == (one.kind, one.id, one.name, "running")
    assert runpod.describe(machines[1]).data["target"]["host_keys"] == machines[0].data["target"]["host_keys"]


def test_members_without_a_rank_are_ours_and_no_machines_yet(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    fake.life = dataclasses.replace(AT_ONCE, ranked_s=3600)
    (whole,) = made(runpod)
    found = by_kind(runpod.list_owned(OWNER, []))
    assert (len(found["cluster"]), len(found["machine"]), len(found["member"])) == (1, 0, 2)
    assert found["cluster"][0].data["machines"] == whole.data["machines"] == 2
    assert all(one.name.startswith(f"gpuops-{OWNER}-lab-pod") for one in found["member"])
    fake.advance(3700)
    found = by_kind(runpod.list_owned(OWNER, []))
    assert [one.name[-1] for one in sorted(found["machine"], key=lambda one: one.name)] == ["0", "1"]
    runpod.destroy(runpod.list_owned(OWNER, []))
    assert not fake.running()


@pytest.mark.parametrize("status", [0, 502])
def test_a_lost_answer_is_found(runpod: RunpodProvisioner, fake: FakeRunPod, status: int) -> None:
    fake.play(lost_create(status, at="POST /clusters"))
    with pytest.raises(Unknown):
        made(runpod)
    found = by_kind(runpod.list_owned(OWNER, []))
    assert (len(found["cluster"]), len(found["machine"])) == (1, 2)
    assert len(fake.asked("POST", "/clusters")) == 1


def test_ending_it_ends_every_member(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    resources = made(runpod)
    for _ in range(2):
        runpod.destroy(resources)
    assert not fake.running()
    assert runpod.list_owned(OWNER, []) == []
    assert [runpod.describe(one).state for one in resources] == ["ended"] * 3
    assert len([one for one in fake.asked("DELETE", "/clusters/*") if one.status == 204]) == 1


def test_a_member_alone_ends_its_cluster(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    _, first, _ = made(runpod)
    runpod.destroy([dataclasses.replace(first, parent="")])
    assert not fake.running()


def test_members_that_their_cluster_leaves_behind_are_found_and_ended(
    runpod: RunpodProvisioner, fake: FakeRunPod
) -> None:
    resources = made(runpod)
    fake.play(leaving_members(), Fault("DELETE /pods/*", times=2, status=409, detail="it belongs to a cluster"))
    runpod.destroy(resources)
    assert len(fake.running()) == 2, "left alive and billing"
    left = runpod.list_owned(OWNER, [])
    assert [one.kind for one in left] == ["machine", "machine"]
    assert {one.name for one in left} == {one.name for one in resources[1:]}
    runpod.destroy(left)
    assert not fake.running()


def test_the_next_kind_is_tried_and_what_could_be_had_is_said(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    offer = runpod.offers(asked())[0]
    fake.play(capacity(at="POST /clusters"))
    with pytest.raises(NoCapacity):
        runpod.create(offer, intended(), Lines())
    assert not fake.clusters
    with pytest.raises(NoCapacity) as caught:
        runpod.offers(asked(gpu_type="4090"))
    assert "no cluster of 2 times 2 x RTX 4090" in caught.value.message
    assert "--gpus 8 of A100 SXM, B200" in caught.value.hint


def test_how_many_gpus_each_is_never_guessed(runpod: RunpodProvisioner) -> None:
    """Sixteen of them at $48/h are not what anybody means who says nothing."""
    with pytest.raises(UsageError, match="2 nodes of how many GPUs each"):
        runpod.offers(Request("runpod", nodes=2))
    found = runpod.offers(Request("runpod", nodes=2, gpus=8))
    assert found[0].say.startswith("2 pods in one cluster, each 8 x A100 SXM")
    assert any("$80/h" in note for note in found[-1].notes)


@pytest.mark.parametrize(
    "options",
    [
        {"cloud": "community"},
        {"min-cuda": "12.8"},
        {"template": "t"},
        {"registry": "r"},
        {"min-ram": 8},
        {"min-vcpu": 1},
    ],
)
def test_what_a_cluster_cannot_be_asked_for(runpod: RunpodProvisioner, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        runpod.offers(asked(options=options))
    with pytest.raises(UsageError):
        runpod.offers(asked(nodes=251))


def test_a_key_without_a_right_to_clusters_still_lists_pods(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    fake.add_pod(f"gpuops-{OWNER}-lab-0")
    fake.play(Fault("GET /clusters", status=403, detail="access denied", times=None))
    assert len(runpod.list_owned(OWNER, [])) == 1
    made(runpod)
    assert len(by_kind(runpod.list_owned(OWNER, []))["machine"]) == 3, "members are among the pods"


@pytest.mark.parametrize("fault", [Fault("GET /clusters", status=404, times=None),
                                   Fault("GET /clusters", status=500, times=None)])  # fmt: skip
def test_a_pod_of_its_own_waits_for_no_list_of_clusters(
    runpod: RunpodProvisioner, fake: FakeRunPod, fault: Fault
) -> None:
    pod = fake.add_pod(f"gpuops-{OWNER}-lab-0")
    fake.add_cluster("gpuops-ffffffff-lab-cluster")
    fake.play(fault)
    assert [one.id for one in runpod.list_owned(OWNER, [])] == [pod.id]
    made(runpod)
    with pytest.raises((Rejected, Unknown)):  # of a cluster of ours nothing is left out
        runpod.list_owned(OWNER, [])


def test_after_a_lost_answer_no_list_without_clusters_counts(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    """The cluster may be there, and its members not listed yet."""
    fake.play(Fault("POST /clusters", status=500), Fault("GET /clusters", status=500, times=None))
    assert runpod.list_owned(OWNER, []) == []
    with pytest.raises(Unknown):
        made(runpod)
    with pytest.raises(Unknown):
        runpod.list_owned(OWNER, [])


def member(rank: int | None, name: str = "x", **more: Any) -> dict[str, Any]:
    return {"id": "p-1", "name": name, "cluster": {"id": "c", "rank": rank}, **more}


@pytest.mark.parametrize(("pod", "cluster", "mark"), [
    ({"id": "p", "name": "gpuops-o-lab-0"}, "", "gpuops-o-lab-0"),
    (member(1), "gpuops-o-a-b-cluster", "gpuops-o-a-b-1"),
    (member(0, env={"GPUOPS_MARK": "gpuops-o-l-"}), "", "gpuops-o-l-0"),
    (member(3, "gpuops-o-lab-cluster-node-3"), "", "gpuops-o-lab-3"),
    (member(None), "gpuops-o-lab-cluster", "gpuops-o-lab-podp1"),
    (member(0, "theirs"), "somebody's", "theirs"),
    (member(0), "gpuops-o-cluster-cluster", "gpuops-o-cluster-0"),
])  # fmt: skip
def test_whose_a_pod_is(pod: dict[str, Any], cluster: str, mark: str) -> None:
    assert machines.resource_name(machines.parse_pod(pod), {"c": cluster}) == mark
