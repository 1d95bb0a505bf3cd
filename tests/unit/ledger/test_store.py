"""The ledger: many commands at once, a newer version, damage, a disk that will not."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpuops.core.errors import UsageError
from gpuops.core.models import Lease, Resource
from gpuops.core.processes import Identity, myself
from gpuops.ledger import FILE
from gpuops.ledger.schema import SCHEMA, set_aside, unwritable
from gpuops.ledger.store import Ledger, LedgerJournal, LedgerTooNew, LedgerUnwritable, RowGone, RunRow
from gpuops.sync.run_folder import RunHome
from tests.conftest import open_folder, without_root


def intend(ledger: Ledger, name: str | None = None, owner_process: Identity | None = None) -> int:
    row = ledger.intend(provider="local", name=name, folder=Path("/p"), ephemeral=False, token="t",
                        request={"nodes": 2}, boot_deadline=10.0, lease=Lease(1.0, 2.0, 3.0),
                        owner_process=owner_process or myself(), now=5.0)  # fmt: skip
    return row.id


def machine(ident: str, mark: str = "gpuops-x-a-0") -> Resource:
    return Resource("machine", ident, "r", mark, True, data={"root": "/ä"})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    one = Ledger.open(tmp_path)
    yield one
    one.close()


def test_what_goes_in_comes_out(ledger: Ledger) -> None:
    row = ledger.cluster(intend(ledger, "lab"))
    assert (row.name, row.state, row.lease, row.request, row.owner_process) == (
        "lab", "creating", Lease(1.0, 2.0, 3.0), {"nodes": 2}, myself())  # fmt: skip
    ledger.set_cluster(row.id, offer={"say": "x"}, owner_process=None, why="because")
    assert (ledger.cluster(row.id).offer, ledger.cluster(row.id).owner_process) == ({"say": "x"}, None)


def test_it_is_safe_on_nfs_and_for_one_user(ledger: Ledger) -> None:
    assert ledger.db.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    assert ledger.db.execute("PRAGMA synchronous").fetchone()[0] == 3, "EXTRA"
    assert ledger.path.stat().st_mode & 0o777 == 0o600


def test_names_are_taken_for_ever_but_a_given_one_only_while_it_lives(ledger: Ledger) -> None:
    first = intend(ledger)
    ledger.mark_gone(first, 1.0, "down")
    assert ledger.cluster(intend(ledger)).name == "local-2"
    lab = intend(ledger, "lab")
    with pytest.raises(UsageError, match="a cluster named lab exists already"):
        intend(ledger, "lab")
    ledger.mark_gone(lab, 1.0, "down")
    assert ledger.cluster(intend(ledger, "lab")).id != lab


def test_two_ledgers_give_no_name_of_a_run_twice_in_one_project(tmp_path: Path) -> None:
    def add(home: str) -> RunRow:
        (tmp_path / home).mkdir(exist_ok=True)
        ledger = Ledger.open(tmp_path / home)
        try:
            return ledger.add_run(stem="bash", cluster=intend(ledger), folder=tmp_path, tree="project", request={},
                                  facts={}, owner_process=myself(), now=1.0,
                                  claim=lambda home: RunHome(home).claim())  # fmt: skip
        finally:
            ledger.close()

    rows = [add(home) for home in ("mine", "hers", "mine")]
    assert [row.name for row in rows] == ["bash-1", "bash-2", "bash-3"]
    assert all(row.home.is_dir() and row.home.name == row.name for row in rows)


def test_a_resource_said_twice_is_one(ledger: Ledger) -> None:
    row = intend(ledger, "a")
    for _ in range(2):
        ledger.will(row, "machine", "gpuops-x-a-0", "t", "r")
    for _ in range(3):
        ledger.got(row, machine("i-1"))
    assert [one.id for one in ledger.resources(row)] == ["i-1"]
    assert ledger.has_open_intents(row), "the second intent is still open"
    ledger.got(row, machine("i-2"))
    assert [one.id for one in ledger.resources(row)] == ["i-1", "i-2"], "another id is another machine"
    assert not ledger.has_open_intents(row)


def test_a_refusal_closes_the_intent_and_regions_remember(ledger: Ledger) -> None:
    row = intend(ledger, "a")
    ledger.will(row, "machine", "gpuops-x-a-0", "t", "mars")
    ledger.mark_refused(row)
    assert not ledger.has_open_intents(row)
    assert ledger.regions(row) == ["mars"]


def test_gone_is_gone_for_its_runs_too_and_stays(ledger: Ledger) -> None:
    row = intend(ledger)
    run = ledger.add_run(stem="toy", cluster=row, folder=Path("/nowhere"), tree="project", request={}, facts={},
                         owner_process=myself(), now=1.0)  # fmt: skip
    ledger.mark_gone(row, 2.0, "down")
    ledger.mark_gone(row, 3.0, "again")
    assert (ledger.cluster(row).ended, ledger.cluster(row).why) == (2.0, "down")
    assert (ledger.run(run.id).state, ledger.run(run.id).owner_process) == ("home", None)


def test_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    Ledger.open(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(LedgerTooNew, match="written by a newer gpuops"):
        Ledger.open(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_what_is_only_looked_at_is_not_changed(ledger: Ledger, tmp_path: Path) -> None:
    row = intend(ledger, "lab")
    ledger.add_notice("something happened")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    reader = Ledger.open_read_only(tmp_path)
    assert ([one.name for one in reader.clusters()], reader.cluster(row).state) == (["lab"], "creating")
    with pytest.raises(LedgerUnwritable):
        reader.add_notice("more")
    reader.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_where_no_ledger_is_an_empty_one_is_read_and_none_is_made(tmp_path: Path) -> None:
    reader = Ledger.open_read_only(tmp_path / "never made")
    assert (reader.clusters(), reader.runs()) == ([], [])
    with pytest.raises(LedgerUnwritable):
        reader.add_notice("more")
    reader.close()
    assert list(tmp_path.iterdir()) == []


def test_a_change_that_was_cut_off_before_its_disk_became_read_only_is_not_seen(ledger: Ledger, tmp_path: Path) -> None:
    """Its journal lies beside it, and cannot be carried out there."""
    row = intend(ledger)
    for number in range(200):
        ledger.add_notice(f"{number} " + "x" * 1000)
    (tmp_path / "cut").mkdir()
    ledger.db.execute("PRAGMA cache_size = 2")
    ledger.db.execute("BEGIN IMMEDIATE")
    ledger.db.execute("UPDATE clusters SET state = 'ending'")
    ledger.db.execute("UPDATE notices SET say = 'y' || say")
    for name in (FILE, f"{FILE}-journal"):
        shutil.copyfile(tmp_path / name, tmp_path / "cut" / name)
    ledger.db.execute("ROLLBACK")
    before = {path.name: path.read_bytes() for path in (tmp_path / "cut").iterdir()}
    reader = Ledger.open_read_only(tmp_path / "cut")
    assert reader.cluster(row).state == "creating"
    with pytest.raises(LedgerUnwritable):
        reader.add_notice("more")
    reader.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "cut").iterdir()} == before


def overwrite(path: Path) -> None:
    path.write_bytes(b"this is no database, and never was one. " * 200)


def tear(path: Path) -> None:
    """A page in the middle is another file's: found only by a look at everything."""
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 3] = os.urandom(4096)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def lose_tables(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE notices")


@pytest.mark.parametrize("damage", [overwrite, tear, cut, lose_tables])
def test_a_damaged_one_is_kept_aside_and_said(tmp_path: Path, damage: object) -> None:
    ledger = Ledger.open(tmp_path)
    intend(ledger, "lab")
    ledger.close()
    damage(tmp_path / FILE)  # type: ignore[operator]
    (tmp_path / f"{FILE}-journal").write_bytes(b"an old journal must not be played into the new ledger" * 99)
    damaged = (tmp_path / FILE).read_bytes()
    fresh = Ledger.open(tmp_path)
    assert fresh.clusters() == []
    (aside,) = tmp_path.glob(f"{FILE}.damaged-*[0-9]")
    if damage is not lose_tables:
        assert aside.read_bytes() == damaged
    (notice,) = [say for _, say in fresh.take_notices()]
    assert notice == f"the ledger was damaged and is kept as {aside}; `gpuops reap --adopt` takes back what still lives"
    assert intend(fresh, "lab")


def test_the_journal_of_a_damaged_one_goes_with_it(tmp_path: Path) -> None:
    """A hot journal left beside a new ledger would be played into it, and damage that too."""
    Ledger.open(tmp_path).close()
    journal = tmp_path / f"{FILE}-journal"
    journal.write_bytes(b"pages of the old ledger")
    aside = set_aside(tmp_path / FILE)
    assert not journal.exists()
    assert aside.with_name(f"{aside.name}-journal").read_bytes() == b"pages of the old ledger"


def test_who_comes_second_to_a_damage_finds_a_new_ledger_and_keeps_it(tmp_path: Path) -> None:
    first = Ledger.open(tmp_path)
    intend(first, "lab")
    assert [row.name for row in Ledger._replace_damaged(tmp_path / FILE).clusters()] == ["lab"]


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(LedgerUnwritable, match="cannot be used") as caught:
        Ledger.open(tmp_path)
    assert caught.value.hint == "check the folder's permissions and free space", "another home knows of nothing"


@pytest.mark.parametrize("there", [True, False], ids=["a ledger", "none yet"])
def test_a_home_that_may_only_be_read(there: bool) -> None:
    with open_folder() as home:
        if there:
            Ledger.open(home).close()
            (home / FILE).chmod(0o444)
        home.chmod(0o555)
        with without_root(), pytest.raises(LedgerUnwritable, match="cannot be used"):
            intend(Ledger.open(home))
        home.chmod(0o755)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (sqlite3.SQLITE_BUSY, 4),
        (sqlite3.SQLITE_FULL, 4),
        (sqlite3.SQLITE_IOERR_WRITE, 4),
        (sqlite3.SQLITE_CANTOPEN, 2),
        (sqlite3.SQLITE_READONLY, 2),
    ],
)
def test_a_disk_that_fails_is_no_wrong_usage(tmp_path: Path, code: int, exit_code: int) -> None:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    assert unwritable(tmp_path / FILE, error).exit_code == exit_code


def test_a_full_disk_is_a_sentence_and_nothing_half_done(ledger: Ledger) -> None:
    row = intend(ledger, "lab")
    pages = ledger.db.execute("PRAGMA page_count").fetchone()[0]
    ledger.db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerUnwritable, match="full"):
        ledger.add_notice("x" * 100_000)
    assert not ledger.db.in_transaction
    ledger.db.execute("PRAGMA max_page_count = 100000")
    ledger.add_notice("again")
    assert ledger.cluster(row).name == "lab"


def test_a_row_that_is_gone_is_a_sentence(ledger: Ledger) -> None:
    for read, what in ((ledger.cluster, "cluster"), (ledger.run, "run")):
        with pytest.raises(RowGone, match=f"that {what} is no longer in the ledger"):
            read(7)
    with pytest.raises(RowGone, match="that cluster is no longer in the ledger"):
        ledger.take_ownership(7, myself())
    with pytest.raises(RowGone, match="that cluster is no longer in the ledger"):
        ledger.will(7, "machine", "m", "t", "r")
    assert not ledger.db.in_transaction


def test_every_look_at_a_locked_one_is_a_sentence(ledger: Ledger) -> None:
    row = intend(ledger, "lab")
    ledger.db.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    reads = [
        partial(ledger.cluster, row), ledger.clusters, partial(ledger.resources, row),
        partial(ledger.has_open_intents, row), partial(ledger.regions, row),
        partial(ledger.run, 1), ledger.runs, ledger.take_notices,
    ]  # fmt: skip
    for read in reads:
        with pytest.raises(LedgerUnwritable, match="locked"):
            read()
    other.execute("ROLLBACK")
    other.close()


def test_a_wrong_statement_stays_a_bug(ledger: Ledger) -> None:
    row = intend(ledger)
    with pytest.raises(sqlite3.OperationalError):
        ledger.set_cluster(row, no_such_column=1)
    assert not ledger.db.in_transaction


def test_a_failed_change_leaves_nothing(ledger: Ledger) -> None:
    row = intend(ledger)
    with pytest.raises(sqlite3.ProgrammingError):
        ledger.set_cluster(row, state=object())
    LedgerJournal(ledger, row).will("machine", "m", "t", "r")
    assert ledger.regions(row) == ["r"]
