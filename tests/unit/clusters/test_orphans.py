"""What carries our mark and is in no live cluster of the ledger is found; what may be left is never called gone."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.agent.wire_format import PROTOCOL
from gpuops.cli.terminal.output import Output
from gpuops.clusters import adoption, orphans, virtual_nodes
from gpuops.clusters.home_files import record_rented
from gpuops.clusters.teardown import PERMANENT_ERRORS_MAX
from gpuops.commands import down, status
from gpuops.core import provider as contract
from gpuops.core.context import Context
from gpuops.core.errors import LocalDisk, NodeError, RateLimited, StillBilling, UsageError
from gpuops.core.models import Lease, Resource
from gpuops.core.reporting import Silent
from gpuops.guard import cleanup
from gpuops.ledger.rows import RunFacts
from gpuops.ledger.store import Ledger, RowGone
from gpuops.transport.schemas import NodeHello, WatchdogLease
from gpuops.transport.ssh import Target
from provisioners import registry
from provisioners.ssh.hosts import HostBook, KnownHost
from tests.fakes.provider import NAME, OWNER, Cloud, Fault, Scripted, surroundings


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    for rented in ("runpod", "aws"):
        monkeypatch.delitem(registry.BUILT_IN, rented)  # has tests of its own
    return surroundings(tmp_path, monkeypatch)


def exists(world: Context, *clusters: str) -> None:
    """One machine each at the provider, whatever the ledger knows."""
    for name in clusters:
        Scripted(contract.Context(OWNER, world.home, world.env))._add(f"gpuops-{OWNER}-{name}-0")


def known(world: Context, name: str, state: str = "up") -> int:
    row = world.ledger.intend(provider=NAME, name=name, folder=world.folder, ephemeral=False, token="t", request={},
                              boot_deadline=0.0, lease=Lease(), owner_process=world.me, now=0.0)  # fmt: skip
    world.ledger.set_cluster(row.id, state=state, owner_process=None)
    return row.id


def unasked(world: Context) -> list[str]:
    return [one.say for one in orphans.find_orphans(world)[1]]


def names(found: list[orphans.Orphan]) -> list[str]:
    return sorted(stray.cluster for stray in found)


def test_strays_are_what_no_live_cluster_accounts_for(there: tuple[Cloud, Context]) -> None:
    _, world = there
    exists(world, "lab", "lab-b", "old", "lost")
    known(world, "lab")
    world.ledger.mark_gone(known(world, "old"), 1.0, "down")
    found, unasked = orphans.find_orphans(world)
    assert names(found) == ["lab-b", "lost", "old"]
    assert unasked == []
    orphans.destroy_orphans(world, found)
    assert there[0].machines() == [f"gpuops-{OWNER}-lab-0"]


def test_the_same_name_at_another_provider_is_another_cluster(there: tuple[Cloud, Context]) -> None:
    _, world = there
    exists(world, "lab")
    row = known(world, "lab")
    world.ledger.set_cluster(row, provider="local")
    assert names(orphans.find_orphans(world)[0]) == ["lab"]
    assert [one.known for one in status.list_cloud(world).resources] == [False]


def test_a_provider_that_cannot_be_asked_hides_no_other(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    exists(world, "lost")
    (cloud.site / "scripted-1.0.dist-info" / "entry_points.txt").write_text(
        f"[gpuops.provisioners]\na = no_such_module:x\n{NAME} = tests.fakes.provider:Scripted\n"
    )
    found, unasked = orphans.find_orphans(world)
    assert names(found) == ["lost"]
    assert [one.say.split(":")[0] for one in unasked] == ["a could not be asked"]


@pytest.mark.parametrize("again", [orphans.REAP, f"{orphans.REAP} --owner 1f0c3a9e"])
def test_what_did_not_end_is_ended_by_the_same_words_again(there: tuple[Cloud, Context], again: str) -> None:
    cloud, world = there
    exists(world, "lost")
    found, _ = orphans.find_orphans(world)
    cloud.play(destroy_always=[Fault("AuthFailed")])
    with pytest.raises(StillBilling) as failed:
        orphans.end_orphans(world, found, [], again=again)
    assert failed.value.hint.endswith(f"; then: {again}")
    assert failed.value.hint.count(orphans.REAP) == 1
    assert cloud.calls().count("destroy") == PERMANENT_ERRORS_MAX, "what is refused for good is not tried for long"


@pytest.mark.parametrize(
    "script",
    [
        {"destroy_always": [Fault(lie=True)]},
        {"destroy_always": [Fault("KeyError", lie=True)]},
        {"list_owned_always": [Fault("Unknown")]},
        {"list_owned_always": [Fault("RateLimited", retry_after=0.0)]},
    ],
    ids=str,
)
def test_reap_never_says_ended_of_what_may_be_there(there: tuple[Cloud, Context], script: dict[str, Any]) -> None:
    cloud, world = there
    exists(world, "lost")
    found, _ = orphans.find_orphans(world)
    cloud.play(**script)
    (cloud.folder / "calls").unlink()
    began = world.clock.monotonic()
    with pytest.raises(StillBilling, match=r"lost-0 may still be there and bill \$1\.25/h"):
        orphans.destroy_orphans(world, found)
    assert world.clock.monotonic() - began < 200


def test_one_that_is_gone_already_does_not_take_the_turn_of_the_next(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that lets one be ended every three seconds counts each request, also for what is gone (Vast.ai)."""
    cloud, world = there
    exists(world, "a", "b", "c")
    real, last = Scripted.destroy, [0.0]

    def destroy(self: Scripted, resources: Sequence[Resource]) -> None:
        for nth, one in enumerate(resources):
            if nth or world.clock.now() - last[0] < 3.0:
                raise RateLimited("slow down", "wait", 3.0)
            last[0] = world.clock.now()
            real(self, [one])

    monkeypatch.setattr(Scripted, "destroy", destroy)
    orphans.destroy_orphans(world, orphans.find_orphans(world)[0])
    assert cloud.machines() == []


def test_what_goes_in_the_last_moment_is_looked_at_again(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider answers only after `gone_s`, and lists for a moment longer what it has ended."""
    cloud, world = there
    exists(world, "a")
    cloud.play(destroy=[Fault(lie=True)])
    real = Scripted.destroy

    def destroy(self: Scripted, resources: Sequence[Resource]) -> None:
        real(self, resources)
        world.clock.sleep(self.gone_s + 1)

    monkeypatch.setattr(Scripted, "destroy", destroy)
    orphans.destroy_orphans(world, orphans.find_orphans(world)[0])
    assert cloud.machines() == []


def test_what_is_a_clusters_by_the_time_of_the_answer_is_left_to_it(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    exists(world, "lab", "lost")
    found, _ = orphans.find_orphans(world)
    known(world, "lab")
    orphans.destroy_orphans(world, found)
    assert cloud.machines() == [f"gpuops-{OWNER}-lab-0"]


def test_whoever_could_not_be_asked_is_named_after_the_rest_was_ended(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    exists(world, "lost")
    found, _ = orphans.find_orphans(world)
    with pytest.raises(StillBilling, match="something may still be there: moon could not be asked: why"):
        orphans.end_orphans(world, found, [orphans.UncheckedProvider("moon could not be asked: why")])
    assert cloud.machines() == []
    orphans.end_orphans(world, [], [])


def test_down_of_what_is_gone_says_so(there: tuple[Cloud, Context]) -> None:
    _, world = there
    world.ledger.mark_gone(known(world, "lab"), 1.0, "reached the end of its lease")
    rows = down.pick_clusters(world, ["lab"], everything=False)
    assert down.down(world, rows, Silent(), force=False) == ["lab is gone already (reached the end of its lease)"]
    assert down.pick_clusters(world, [], everything=False) == []
    with pytest.raises(UsageError, match="no live cluster named lib"):
        down.pick_clusters(world, ["lib"], everything=False)


def test_forgotten_clusters_are_closed_once_nothing_is_there(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    exists(world, "lab")
    lab, old, making = known(world, "lab"), known(world, "old"), known(world, "making", "creating")
    assert orphans.close_vanished_clusters(world) == (["old"], [])
    assert [world.ledger.cluster(row).state for row in (lab, old, making)] == ["up", "gone", "creating"]
    cloud.play(list_owned_always=[Fault("Unknown")])
    closed, unasked = orphans.close_vanished_clusters(world)
    assert closed == []
    assert [one.say for one in unasked] == ["scripted could not be asked about lab: the provider said Unknown"]


def test_a_cluster_that_somebody_works_on_is_not_closed_but_asked_about(there: tuple[Cloud, Context]) -> None:
    """The guard takes a cluster up at any moment: what `reap` says of it must not depend on that."""
    cloud, world = there
    lab = known(world, "lab")
    world.ledger.set_cluster(lab, owner_process=world.me)
    assert orphans.close_vanished_clusters(world) == ([], [])
    assert world.ledger.cluster(lab).state == "up"
    cloud.play(list_owned_always=[Fault("Unknown")])
    assert [one.say for one in orphans.close_vanished_clusters(world)[1]] == [
        "scripted could not be asked about lab: the provider said Unknown"
    ]


def test_a_cluster_that_vanished_under_its_run_is_left_to_the_guard(there: tuple[Cloud, Context]) -> None:
    """The run is not judged yet, and its bucket may have results."""
    _, world = there
    world.out = Output(err=(said := io.StringIO()))
    lab = known(world, "lab")
    run = world.ledger.add_run(stem="toy", cluster=lab, folder=world.folder, tree="project", request={}, facts={},
                               owner_process=world.me, now=0.0)  # fmt: skip
    world.ledger.set_run(run.id, state="running", owner_process=None)
    assert orphans.close_vanished_clusters(world) == ([], [])
    assert (world.ledger.cluster(lab).state, world.ledger.run(run.id).state) == ("up", "running")
    assert "the guard brings home what toy-1 kept elsewhere, then clears it away" in said.getvalue()
    world.ledger.set_run(run.id, state="home")
    assert orphans.close_vanished_clusters(world) == (["lab"], [])


def test_a_cluster_whose_package_was_removed(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    known(world, "lab")
    (cloud.site / "scripted-1.0.dist-info" / "entry_points.txt").unlink()
    closed, unasked = orphans.close_vanished_clusters(world)
    assert closed == []
    assert "there is no provider named 'scripted'" in unasked[0].say
    assert [cluster.name for cluster in status.describe_clusters(world)] == ["lab"]


def test_what_answers_is_ended_and_who_does_not_is_named(there: tuple[Cloud, Context]) -> None:
    """Of several regions one is silent: the others' machines do not live on for it, and the end is not called whole."""
    cloud, world = there
    exists(world, "lost")
    cloud.play(list_owned=[Fault("Partial")])
    found, unasked = orphans.find_orphans(world)
    assert names(found) == ["lost"]
    assert [one.say for one in unasked] == ["not all of scripted could be asked: the provider said Partial"]
    report = status.list_cloud(world)
    assert ([one.known for one in report.resources], report.unchecked) == ([False], [])
    with pytest.raises(StillBilling, match="not all of scripted could be asked"):
        orphans.end_orphans(world, found, unasked)
    assert cloud.machines() == []


def test_a_provider_that_is_not_set_up_and_was_never_used_is_no_failure(
    there: tuple[Cloud, Context],
) -> None:
    cloud, world = there
    world.out = Output(err=(said := io.StringIO()))
    cloud.play(list_owned_always=[Fault("AuthFailed")])
    assert orphans.find_orphans(world) == ([], [])
    note = "note: no cluster of this ledger was ever at scripted, which is not asked: the provider said AuthFailed\n"
    assert said.getvalue() == note
    world.ledger.mark_gone(known(world, "lab"), 1.0, "down")
    assert unasked(world) == ["scripted could not be asked: the provider said AuthFailed"]


@pytest.mark.parametrize("how", ["damaged", "by hand", "removed"])
def test_a_ledger_that_does_not_know_the_past_excuses_nobody(there: tuple[Cloud, Context], how: str) -> None:
    cloud, world = there
    cloud.play(list_owned_always=[Fault("AuthFailed")])
    if how == "damaged":
        (world.home / "ledger.db.damaged-1-2").touch()
    elif how == "by hand":  # as the ledger's own hint says
        (world.home / "ledger.db.damaged-by-hand").touch()
    else:
        (world.home / "local" / "lab" / "n0").mkdir(parents=True)
    assert unasked(world) == ["scripted could not be asked: the provider said AuthFailed"]


def test_a_newer_ledger_still_tells_which_providers_were_used(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(list_owned_always=[Fault("AuthFailed")])
    known(world, "lab")
    path = world.ledger.path
    world.ledger.db.execute("PRAGMA user_version = 99")
    del world.ledger
    assert unasked(world) == ["scripted could not be asked: the provider said AuthFailed"]
    path.unlink()
    Ledger.open(world.home).db.execute("PRAGMA user_version = 99")
    assert orphans.find_orphans(world) == ([], [])


def test_who_never_rented_hears_nothing_of_a_provider_that_is_not_set_up(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    world.out = Output(err=(said := io.StringIO()))
    cloud.play(list_owned_always=[Fault("NotSetUp")])
    assert orphans.find_orphans(world) == ([], [])
    assert said.getvalue() == ""
    idle: list[orphans.UncheckedProvider] = []
    assert orphans.find_resources(world, idle) == ([], [])
    assert [one.say for one in idle if "scripted" in one.say] == [
        "scripted is not set up here: the provider said NotSetUp"
    ]
    (world.home / "ledger.db.damaged-1-2").touch()  # nor where the past is not known
    assert orphans.find_orphans(world) == ([], [])
    record_rented(world.home, NAME)
    record_rented(world.home, NAME)
    assert (world.home / "rented").read_text() == f"{NAME}\n"
    assert unasked(world) == ["scripted could not be asked: the provider said NotSetUp"]


def test_a_provider_of_this_ledger_that_is_not_set_up_any_more_counts(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(list_owned_always=[Fault("NotSetUp")])
    known(world, "lab")
    assert unasked(world) == ["scripted could not be asked: the provider said NotSetUp"]


def test_two_clusters_of_one_name_are_told_apart_by_their_tokens(there: tuple[Cloud, Context]) -> None:
    """One is in the ledger; the other was made by an earlier ledger, on a host that has come back since."""
    cloud, world = there
    row = known(world, "lab")
    for token in ("t-1-0", "older-1-0"):
        cloud.play(data={"token": token})
        exists(world, "lab")
    found, _ = orphans.find_orphans(world)
    assert [stray.resource.data["token"] for stray in found] == ["older-1-0"]
    world.ledger.mark_gone(row, 1.0, "down")
    assert [len(one.resources) for one in orphans.group_orphans(orphans.find_orphans(world)[0])] == [1, 1]


def test_what_cannot_be_taken_back_is_left_and_said(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    exists(world, "lab")
    found, _ = orphans.find_orphans(world)
    back, failed = adoption.adopt_all(world, orphans.group_orphans(found), complete=True)
    assert (back, [error.exit_code for error in failed]) == ([], [4])
    Scripted(contract.Context(OWNER, world.home, world.env))._add(f"gpuops-{OWNER}-half-1")
    (half,) = [one for one in orphans.group_orphans(orphans.find_orphans(world)[0]) if one.name == "half"]
    with pytest.raises(NodeError, match="half cannot be taken back: node0 of it is not found"):
        adoption.adopt(world, half)
    assert len(cloud.machines()) == 2
    assert world.ledger.clusters(live=False) == []


def test_a_host_is_forgotten_only_when_no_cluster_is_on_it(there: tuple[Cloud, Context]) -> None:
    _, world = there
    book = HostBook(world.home / "ssh" / "hosts.json")
    book.record("me@there", KnownHost(Target("there", host_keys=("ssh-ed25519 AAAA",)), "/r", "python3"))
    row = known(world, "lab")
    world.ledger.will(row, "machine", "m", "t", "me@there")
    with pytest.raises(UsageError, match="lab has a node on me@there"):
        orphans.forget_host(world, "me@there")
    world.ledger.mark_gone(row, 1.0, "down")
    assert orphans.forget_host(world, "me@there").startswith("me@there is forgotten")
    assert book.names() == []
    with pytest.raises(UsageError, match="nothing of ours is known to be on me@there"):
        orphans.forget_host(world, "me@there")


def test_down_without_a_ledger(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    exists(world, "a", "b")
    with pytest.raises(UsageError, match="several clusters are live: a, b"):
        orphans.down_by_tag(world, [], everything=False)
    with pytest.raises(UsageError, match="no live cluster named c"):
        orphans.down_by_tag(world, ["c"], everything=False)
    assert orphans.down_by_tag(world, ["a"], everything=False) == ["a is gone"]
    assert cloud.machines() == [f"gpuops-{OWNER}-b-0"]
    assert orphans.down_by_tag(world, [], everything=True) == ["b is gone"]


def test_down_without_a_ledger_does_not_vouch_for_whom_it_could_not_ask(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    world.ledger.mark_gone(known(world, "a"), 1.0, "down")
    exists(world, "a")
    cloud.play(list_owned_always=[Fault("AuthFailed")])
    for everything, which in ((True, []), (False, ["a"])):
        with pytest.raises(StillBilling, match="scripted could not be asked"):
            orphans.down_by_tag(world, which, everything=everything)


def test_down_without_a_ledger_does_not_call_gone_what_it_saw_in_part(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    exists(world, "lab")
    cloud.play(list_owned=[Fault("Partial")] + [Fault()] * 5)
    with pytest.raises(StillBilling):
        orphans.down_by_tag(world, ["lab"], everything=False)
    assert cloud.machines() == []


def a_hello(**lease: float) -> NodeHello:
    return NodeHello(PROTOCOL, 1, [], "/n", lease=WatchdogLease(**lease))


def test_of_several_nodes_the_earliest_end_counts_by_our_clock() -> None:
    early = adoption._Node(a_hello(hard_wall=90.0, idle_s=60), skew=20.0)
    late = adoption._Node(a_hello(hard_wall=100, idle_s=30.0))
    assert adoption.merge_leases([early, late, adoption._Node()]) == (Lease(100.0, 30.0), False)
    waits = adoption._Node(a_hello(boot_wall=5.0))
    assert adoption.merge_leases([late, waits]) == (Lease(100.0, 30.0), True)


@pytest.mark.parametrize(("kept_h", "lives_h"), [(None, 24.0), (2.0, 2.0), (240.0, 24.0)])
def test_what_is_rented_and_taken_back_lives_no_longer_than_what_is_new(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, kept_h: float | None, lives_h: float
) -> None:
    _, world = there
    exists(world, "lab")
    now = world.clock.now()
    lease = {} if kept_h is None else {"hard_wall": now + kept_h * 3600, "idle_s": 60.0}
    monkeypatch.setattr(adoption, "_inspect_nodes", lambda *_: [adoption._Node(a_hello(**lease))])
    monkeypatch.setattr(virtual_nodes, "find_virtual_nodes", lambda _row, machine, _index: machine)
    (lost,) = orphans.group_orphans(orphans.find_orphans(world)[0])
    back = adoption.adopt(world, lost)
    assert back.row.lease == Lease(now + lives_h * 3600, 1800.0 if kept_h is None else 60.0)


def test_what_is_taken_back_has_its_guard_whatever_fails_then(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, world = there
    exists(world, "lab")
    guarded: list[str] = []

    def fail(*_: object) -> None:
        raise LocalDisk("its names cannot be written")

    world.services = dataclasses.replace(
        world.services, ensure_guard=lambda _home, row, _waits: guarded.append(row.name)
    )
    monkeypatch.setattr(adoption, "_inspect_nodes", lambda *_: [adoption._Node(a_hello())])
    monkeypatch.setattr(virtual_nodes, "find_virtual_nodes", lambda _row, machine, _index: machine)
    monkeypatch.setattr(adoption, "write_ssh_names", fail)
    with pytest.raises(LocalDisk):
        adoption.adopt(world, orphans.group_orphans(orphans.find_orphans(world)[0])[0])
    assert guarded == ["lab"]


def test_the_ledger_takes_no_number_that_it_could_not_read(there: tuple[Cloud, Context]) -> None:
    _, world = there
    row = known(world, "lab")
    with pytest.raises(ValueError, match="unreadable"):
        world.ledger.set_cluster(row, lease=Lease(float("inf")))
    assert [one.name for one in world.ledger.clusters()] == ["lab"]


def test_without_a_machine_nothing_is_taken_back(there: tuple[Cloud, Context]) -> None:
    _, world = there
    with pytest.raises(NodeError, match="no machine of it is left"):
        adoption.adopt(world, adoption.LostCluster(NAME, "lab", []))
    assert world.ledger.clusters() == []


def test_a_bug_with_one_cluster_keeps_no_other_alive(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, world = there
    exists(world, "a", "b")
    rows = [world.ledger.cluster(known(world, name)) for name in ("a", "b")]

    def odd(_world: Context, row: Any, *_: Any) -> list[down.DeferredFetch]:
        if row.name == "a":
            raise OverflowError("a number of 400 digits")
        return []

    monkeypatch.setattr(down, "_save_runs", odd)
    monkeypatch.setattr(down, "_save_edits", lambda *_: None)
    with pytest.raises(StillBilling, match="a could not be ended: OverflowError"):
        down.down(world, rows, Silent(), force=False)
    assert [row.name for row in world.ledger.clusters()] == ["a"]


@pytest.fixture
def with_a_run(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context, int]:
    """A cluster with a run that nobody keeps."""
    cloud, world = there
    exists(world, "lab")
    run = SimpleNamespace(
        id=1,
        name="train-1",
        state="running",
        owner_process=None,
        has_live_owner=lambda **_: False,
        facts=RunFacts(),
        request={},
    )
    monkeypatch.setattr(world.ledger, "runs", lambda **_: [run])
    monkeypatch.setattr(world.ledger, "take_run_ownership", lambda *_: True)
    return cloud, world, known(world, "lab")


def failing(monkeypatch: pytest.MonkeyPatch, odd: Exception) -> None:
    """Nothing can be had from its nodes."""

    def fails(*_: Any) -> None:
        raise odd

    monkeypatch.setattr(cleanup, "_finish_run", fails)
    monkeypatch.setattr(cleanup, "save_cluster_edits", fails)


@pytest.mark.parametrize("odd", [OverflowError("a number of 400 digits"), RowGone("it is gone"), LocalDisk("full")])
def test_a_lease_that_is_over_waits_for_no_result(
    with_a_run: tuple[Cloud, Context, int], monkeypatch: pytest.MonkeyPatch, odd: Exception
) -> None:
    cloud, world, row = with_a_run
    world.ledger.set_cluster(row, lease=Lease(hard_end=1.0))
    failing(monkeypatch, odd)
    cleanup.clean_up(world, row)
    assert cloud.machines() == []
    assert next(say for _, say in world.ledger.take_notices()).startswith("train-1 is not all home: ")


def test_a_lease_that_lasts_waits_for_them(
    with_a_run: tuple[Cloud, Context, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the cluster was brought up for this run alone: the guard tries again."""
    cloud, world, row = with_a_run
    world.ledger.set_cluster(row, ephemeral=1, lease=Lease(hard_end=world.clock.now() + 60))
    failing(monkeypatch, LocalDisk("full"))
    with pytest.raises(LocalDisk):
        cleanup.clean_up(world, row)
    assert cloud.machines() == [f"gpuops-{OWNER}-lab-0"]
    assert world.ledger.take_notices() == []
