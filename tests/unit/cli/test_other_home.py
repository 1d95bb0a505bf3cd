"""Looking and ending from a home that cannot be written, or that is not the one from which machines were rented."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gpuops.core import provider as contract
from gpuops.core.models import Lease
from gpuops.core.processes import Identity, myself
from gpuops.ledger.store import Ledger
from tests.desk import Desk, Said
from tests.fakes.provider import NAME, OWNER, Cloud, Scripted, install

DEAD = Identity(myself().pid, myself().start - 5.0)
LOST = "1f0c3a9e"
"""The owner of a home that is gone."""
NAMED = (
    f"gpuops-{LOST}-lab-0 ($1.25/h): another home's, or one's that was lost; if it is yours, "
    f"`gpuops reap --owner {LOST}` ends it"
)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    (tmp_path / "cloud").mkdir()
    cloud = install(tmp_path / "cloud")
    monkeypatch.syspath_prepend(str(cloud.site))
    monkeypatch.setenv("SCRIPTED", str(cloud.folder))
    monkeypatch.setattr("provisioners.registry.provider_names", lambda: [NAME])
    monkeypatch.setattr("gpuops.guard.start.ensure", lambda *_, **__: None)
    return cloud


def rent(desk: Desk, cloud: Cloud, owner: str) -> None:
    """A machine that bills."""
    context = contract.Context(owner, desk.home, {"SCRIPTED": str(cloud.folder)})
    Scripted(context)._add(f"gpuops-{owner}-lab-0")


def bring_up(desk: Desk, cloud: Cloud, run: str | None = None) -> None:
    """A home with a cluster, and with a run in this state."""
    desk.home.mkdir()
    (desk.home / "owner").write_text(OWNER + "\n")
    context = contract.Context(OWNER, desk.home, {"SCRIPTED": str(cloud.folder)})
    ledger = Ledger.open(desk.home)
    row = ledger.intend(provider=NAME, name="lab", folder=desk.folder, ephemeral=False, token="t", request={},
                        boot_deadline=time.time() + 60, lease=Lease(), owner_process=DEAD, now=time.time())  # fmt: skip
    ledger.got(row.id, Scripted(context)._add(f"gpuops-{OWNER}-lab-0"))
    ledger.mark_up(row.id, Lease(), time.time())
    if run:
        made = ledger.add_run(stem="toy", cluster=row.id, folder=desk.folder, tree="project", request={}, facts={},
                              owner_process=DEAD, now=1.0)  # fmt: skip
        ledger.set_run(made.id, state=run, owner_process=None)
    ledger.add_notice("something happened")
    ledger.close()


def close_home(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("gpuops.cli.context.can_write", lambda _home: False)


def content(desk: Desk) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in desk.home.iterdir()}


@pytest.mark.parametrize("words", ["status", "status --cloud", "lease lab", "runs", "reap --yes"])
def test_whoever_looks_needs_no_writable_home(
    desk: Desk, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    bring_up(desk, cloud)
    before = content(desk)
    close_home(monkeypatch)
    saw = desk.type(*words.split())
    assert saw.code == 0
    assert "lab" in saw.out or words in ("runs", "reap --yes")
    assert "something happened" not in saw.err, "it is for who can note that it was seen"
    if words != "status --cloud":
        assert saw.err.startswith(f"note: {desk.home} cannot be written: no guard is started")
    assert content(desk) == before
    assert cloud.machines() == [f"gpuops-{OWNER}-lab-0"], "what the ledger knows is no orphan"


@pytest.mark.parametrize("words", ["down", "down lab", "down --all"])
def test_a_cluster_ends_from_a_home_that_cannot_be_written(
    desk: Desk, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    bring_up(desk, cloud, run="home")
    before = content(desk)
    close_home(monkeypatch)
    said = desk.type(*words.split())
    assert (said.code, said.err.splitlines()[-1]) == (0, "lab is gone")
    assert cloud.machines() == []
    assert content(desk) == before


def test_but_not_with_the_only_copy_of_results(desk: Desk, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up(desk, cloud, run="running")
    close_home(monkeypatch)
    said = desk.type("down", "lab")
    assert said.code == 5
    assert said.err.splitlines()[-2:] == [
        f"error: results of toy-1 may not be home, and nothing can be noted in {desk.home}; lab is not ended",
        "hint: make that folder writable, or give them up: gpuops down lab --force",
    ]
    assert len(cloud.machines()) == 1
    assert desk.type("down", "lab", "--force").code == 0
    assert cloud.machines() == []


def test_a_lease_cannot_be_extended_where_nothing_can_be_noted(
    desk: Desk, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up(desk, cloud)
    monkeypatch.setattr("gpuops.core.home.can_write", lambda _home: False)
    said = desk.type("lease", "lab", "--extend", "1h")
    assert (said.code, said.err.splitlines()[0]) == (2, f"error: gpuops may not write to its folder {desk.home}")
    assert "GPUOPS_HOME" not in said.err, "another folder knows of nothing"


@pytest.mark.parametrize("words", ["status", "down", "down --all", "runs"])
def test_a_home_that_is_new_is_called_so_and_is_not_made(desk: Desk, cloud: Cloud, words: str) -> None:
    rent(desk, cloud, LOST)
    said = desk.type(*words.split())
    assert said.code == 0
    if words != "runs":
        note = f"note: {desk.home} is a new home, and knows of nothing that another one brought up"
        assert said == Said(0, "nothing is up\n", f"{note}: gpuops status --cloud\n")
    assert not desk.home.exists()
    assert len(cloud.machines()) == 1


@pytest.mark.parametrize("has_home", [True, False])
def test_what_another_owner_has_is_named_and_never_ended_without_its_name(
    desk: Desk, cloud: Cloud, has_home: bool
) -> None:
    if has_home:
        desk.home.mkdir()
        (desk.home / "owner").write_text(OWNER + "\n")
    rent(desk, cloud, LOST)
    saw = desk.type("status", "--cloud")
    assert [line.split() for line in saw.out.splitlines()[1:-1]] == [
        [f"gpuops-{LOST}-lab-0", NAME, "machine", "running", "$1.25", "no"]
    ]
    assert saw.out.splitlines()[-1] == NAMED
    (shown,) = json.loads(desk.type("status", "--cloud", "--json").out)["resources"]
    assert (shown["known"], shown["owner"], shown["per_hour"]) == (False, LOST, 1.25)
    assert desk.type("reap", "--yes") == Said(0, "nothing left over\n", f"note: {NAMED}\n")
    assert len(cloud.machines()) == 1


def test_what_a_lost_home_left_is_ended_by_its_owners_name(desk: Desk, cloud: Cloud) -> None:
    rent(desk, cloud, LOST)
    rent(desk, cloud, "0badcafe")
    asked = desk.type("reap", "--owner", LOST)
    assert (asked.code, asked.err.splitlines()) == (5, [
        "found lab at scripted (1 node)",
        "error: cannot ask what to do with 1 orphaned cluster: no terminal",
        f"hint: if it is yours, end it: gpuops reap --owner {LOST} --yes",
    ])  # fmt: skip
    assert len(cloud.machines()) == 2
    assert desk.type("reap", "--owner", LOST, "--yes") == Said(0, f"ended gpuops-{LOST}-lab-0\n", "")
    assert cloud.machines() == ["gpuops-0badcafe-lab-0"]
    assert desk.type("reap", "--owner", LOST, "--yes").out == f"nothing of {LOST}'s\n"
    assert not desk.home.exists()


@pytest.mark.parametrize(
    ("words", "say"),
    [
        ("--owner lab", "'lab' is no owner: it is 8 hex digits"),
        (f"--owner {OWNER}", f"{OWNER} is this home's own owner"),
        (f"--owner {LOST} --adopt", "--owner only ends"),
    ],
)
def test_an_owner_that_cannot_be_ended_so(desk: Desk, cloud: Cloud, words: str, say: str) -> None:
    bring_up(desk, cloud)
    said = desk.type("reap", *words.split())
    assert (said.code, said.err.splitlines()[0]) == (2, f"error: {say}")
    assert len(cloud.machines()) == 1
