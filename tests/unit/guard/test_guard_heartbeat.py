"""What a guard writes down: that it works, and which keys it has. And when another must take its place."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import pytest

from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, NodeError, StillBilling
from gpuops.core.installed_code import InstalledCode, installed_code
from gpuops.core.models import Lease
from gpuops.guard import cleanup, daemon, guard_heartbeat, schedule
from gpuops.ledger.rows import ClusterRow, ClusterState

A, B = {"RUNPOD_API_KEY": "rpa_" + "A" * 40}, {"RUNPOD_API_KEY": "rpa_" + "B" * 40}
AWS = {"AWS_ACCESS_KEY_ID": "AKIAQ", "AWS_SECRET_ACCESS_KEY": "s3cret/of+somebody"}
PROFILE = {"AWS_PROFILE": "work", "AWS_CONFIG_FILE": "/somewhere/config"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    guard_heartbeat.lock_path(tmp_path, 1)
    return tmp_path


def row(provider: str = "runpod") -> ClusterRow:
    folder = Path("/p")
    return ClusterRow(
        1, "lab", provider, folder, ClusterState.UP, False, "t", {}, {}, 0.0, Lease(), None, 0.0, None, None, ""
    )


def must_be_replaced(home: Path, cluster: ClusterRow, environ: dict[str, str]) -> bool:
    return guard_heartbeat.must_be_replaced(home, cluster, environ, time.monotonic())


def test_no_key_is_written_down(home: Path) -> None:
    for provider in ("runpod", "aws"):
        guard_heartbeat.start(home, row(provider), {**A, **AWS, "PATH": "/bin", "AWS_SESSION_TOKEN": ""})
        text = "".join(path.read_text() for path in (home / guard_heartbeat.FOLDER).iterdir())
        assert not [value for value in (*A.values(), *AWS.values()) if value in text]
        assert "SESSION" not in text
    assert [path.name for path in (home / guard_heartbeat.FOLDER).iterdir()] == ["1.json"]


def test_a_guard_is_stale_when_its_last_round_is_long_ago(home: Path) -> None:
    last = guard_heartbeat.start(home, row(), {})
    assert guard_heartbeat.read(home, 1) == last
    for now, is_stale in (
        (last.at, False),
        (last.at + guard_heartbeat.STALE_S, False),
        (last.at + guard_heartbeat.STALE_S + 1.0, True),
        (last.at - 1.0, False),  # written just after this clock was read
    ):
        assert guard_heartbeat.must_be_replaced(home, row(), {}, now) is is_stale
    later = guard_heartbeat.beat(home, 1, last)
    assert guard_heartbeat.read(home, 1) == later
    assert later.at > last.at


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '{"process": [1], "at": 0, "keys": {}, "rented": {}}'])
def test_who_has_written_nothing_down_yet_is_let_be(home: Path, text: str | None) -> None:
    """It holds the lock and has only just begun."""
    if text is not None:
        (home / guard_heartbeat.FOLDER / "1.json").write_text(text)
    assert not must_be_replaced(home, row(), A)


def test_a_guard_that_never_completes_a_round_is_replaced(home: Path) -> None:
    """It holds the lock, and that alone proves nothing."""
    guard_heartbeat.claim(home, 1)
    last = guard_heartbeat.read(home, 1)
    assert last
    assert not guard_heartbeat.works(home, row(), last.at)
    late = last.at + guard_heartbeat.FIRST_BEAT_S
    for now, replaced in ((late, False), (late + 1.0, True)):
        assert guard_heartbeat.must_be_replaced(home, row(), A, now) is replaced
    begun = guard_heartbeat.start(home, row(), A)
    assert guard_heartbeat.works(home, row(), begun.at)
    assert not guard_heartbeat.works(home, row(), begun.at + guard_heartbeat.STALE_S + 1.0)


def test_a_guard_whose_code_was_replaced_is_relieved(home: Path, tmp_path: Path) -> None:
    """Its attempts are of the new code, and what it holds in memory no longer fits that. Another environment's guard
    is that one's business, while it is there."""
    mine = installed_code()
    (tmp_path / "elsewhere" / "gpuops").mkdir(parents=True)
    last = guard_heartbeat.start(home, row(), A)
    for code, replaced in (
        (mine, False),
        (InstalledCode(mine.folder, "of before the upgrade"), True),
        (InstalledCode(str(tmp_path / "elsewhere"), "another"), False),
        (InstalledCode(str(tmp_path / "removed"), mine.digest), True),
        (None, True),
    ):
        guard_heartbeat.beat(home, 1, dataclasses.replace(last, code=code))
        assert must_be_replaced(home, row(), A) is replaced, code


def test_the_keys_that_were_rented_with_outlive_a_guard_that_has_only_taken_the_lock(home: Path) -> None:
    guard_heartbeat.claim(home, 1)
    guard_heartbeat.start(home, row(), A)
    guard_heartbeat.claim(home, 1)
    assert not must_be_replaced(home, row(), A)
    guard_heartbeat.start(home, row(), B)
    assert must_be_replaced(home, row(), A)


@pytest.mark.parametrize(
    ("provider", "rented", "guard", "environ", "replaced"),
    [
        ("runpod", A, A, {}, False),
        ("runpod", A, A, B, False),  # it works, with the key that the cluster was rented with
        ("runpod", {}, {}, A, False),  # a key in a file, the provider's own or the project's, the guard reads itself
        ("runpod", A, {}, A, True),  # that one was killed, and this one started by a command without a key
        ("runpod", A, {}, B, False),
        ("runpod", A, B, A, True),
        ("runpod", A, {}, {}, False),
        ("runpod", {}, A, {}, True),
        ("aws", PROFILE, PROFILE, {}, False),
        ("aws", PROFILE, {}, PROFILE, True),
        ("aws", AWS, AWS, {**AWS, "AWS_REGION": "eu-west-1"}, False),  # where, but not who
        ("aws", AWS, AWS, {**AWS, **A}, False),  # another provider's key is not asked for here
        ("tent", {}, {}, A, False),
    ],
)
def test_the_environment_that_was_rented_with_comes_back(
    home: Path, provider: str, rented: dict[str, str], guard: dict[str, str], environ: dict[str, str], replaced: bool
) -> None:
    guard_heartbeat.start(home, row(provider), rented)
    guard_heartbeat.start(home, row(provider), guard)
    assert must_be_replaced(home, row(provider), environ) is replaced


def test_keys_that_are_refused(home: Path) -> None:
    """Expired ones, most often: said until the guard has others, which any command may bring."""
    old, new = {**AWS, "AWS_SESSION_TOKEN": "old"}, {**AWS, "AWS_SESSION_TOKEN": "new"}
    aws = row("aws")
    guard_heartbeat.start(home, aws, old)
    assert not must_be_replaced(home, aws, new), "there is no need"
    guard_heartbeat.record_refusal(home, aws, AuthFailed("the session token has expired", "aws sso login"))
    refused = {"aws": {"say": "the session token has expired", "hint": "aws sso login"}}
    assert guard_heartbeat.read_refusals(home, [aws]) == refused
    assert guard_heartbeat.read_refusals(home, []) == {}, "of clusters that there are"
    assert not must_be_replaced(home, aws, old), "the same would be refused again"
    assert not must_be_replaced(home, aws, {})
    assert must_be_replaced(home, aws, new)
    guard_heartbeat.record_refusal(home, aws, None)
    assert guard_heartbeat.read_refusals(home, [aws]) == {}
    guard_heartbeat.record_refusal(home, aws, AuthFailed("no", "yes"))
    guard_heartbeat.start(home, aws, new)
    assert guard_heartbeat.read_refusals(home, [aws]) == {}, "a new guard, new keys"


def test_a_disk_that_cannot_be_written_stops_no_guard(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "folder"
    last = guard_heartbeat.start(missing, row(), A)
    guard_heartbeat.beat(missing, 1, last)
    guard_heartbeat.record_refusal(missing, row(), AuthFailed("no", "yes"))
    guard_heartbeat.remove_files(missing, 1)


def test_a_guard_of_a_cluster_that_another_ledger_had(home: Path) -> None:
    """In a new ledger another cluster has its number: that one has no guard, and other keys may serve it."""
    former = dataclasses.replace(row(), token="of a ledger that was lost")
    guard_heartbeat.start(home, former, A)
    assert not guard_heartbeat.works(home, row(), time.monotonic())
    assert must_be_replaced(home, row(), B)
    guard_heartbeat.claim(home, 1)
    assert not must_be_replaced(home, row(), B), "the one that takes its place has only just begun"
    begun = guard_heartbeat.start(home, row(), B)
    assert guard_heartbeat.works(home, row(), begun.at)
    assert begun.rented == begun.keys
    assert not must_be_replaced(home, row(), A)


def test_no_other_process_is_ended_for_a_guard(home: Path) -> None:
    """A guard that is dead, whose number another process has by now."""
    guard_heartbeat.start(home, row(), {})
    path = home / guard_heartbeat.FOLDER / "1.json"
    path.write_text(path.read_text().replace(f"[{os.getpid()}, ", f"[{os.getpid()}, 1"))
    guard_heartbeat.kill_guard(home, 1)


def test_a_guard_whose_keys_expired_says_so_and_unsays_it(
    world: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it shows as what may still be there: then the refusal is behind it."""
    expired = AuthFailed("the session token has expired", "aws sso login")
    ends: list[BaseException | None] = []

    def tend(*_: object, **__: object) -> None:
        if (error := ends.pop(0)) is not None:
            raise StillBilling("lab-0 may still be there", "gpuops down lab") from error

    monkeypatch.setattr(cleanup, "clean_up", tend)
    guard_heartbeat.lock_path(world.home, 1)
    lab = world.ledger.intend(
        provider="aws", name="lab", folder=world.folder, ephemeral=False, token="t", request={}, boot_deadline=0.0,
        lease=Lease(), owner_process=world.me, now=0.0,
    )  # fmt: skip
    for error, said in ((expired, "aws"), (NodeError("away"), "aws"), (None, "")):
        ends.append(error)
        daemon.run_attempt(world.home, lab.id, schedule.Job.TEND, 0)
        assert [*guard_heartbeat.read_refusals(world.home, [lab])] == ([said] if said else [])
    assert "lab: lab-0 may still be there" in capsys.readouterr().err
