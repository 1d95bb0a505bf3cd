"""What a provider's own look comes to: what stops, what is only wrong, and what is merely to be known."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.clusters import available_offers
from gpuops.commands.doctor import doctor
from gpuops.commands.doctor.report import note
from gpuops.core.context import Context
from gpuops.core.errors import ProviderError
from gpuops.core.models import Problem, Request
from gpuops.offers.lease_limits import LeaseLimits
from tests.fakes.provider import NAME, Cloud, surroundings

WHOSE = Problem("the account is alice's", "--profile for another", note=True)
SLOW = Problem("the line is slow", "move house", fatal=False)
CLOSED = Problem("the shop is closed", "come back tomorrow")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


def finds(world: Context, monkeypatch: pytest.MonkeyPatch, *problems: Problem) -> None:
    def preflight(_: Request) -> Sequence[Problem]:
        return problems

    monkeypatch.setattr(world.provisioner(NAME), "preflight", preflight)


def test_a_note_stops_nobody_whatever_else_is_said_of_it() -> None:
    assert [one.fatal for one in (WHOSE, SLOW, CLOSED)] == [False, False, True]
    assert not Problem("whose it is", "", fatal=True, note=True).fatal


def test_before_something_is_made_a_note_is_no_warning(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, world = there
    finds(world, monkeypatch, WHOSE, SLOW)
    world.out = Output(err=io.StringIO())
    available_offers.preview_offers(world, Request(NAME), LeaseLimits())
    said = world.out.err.getvalue()  # type: ignore[attr-defined]
    assert "note: the account is alice's; --profile for another\n" in said
    assert "warning: the line is slow; move house\n" in said


def test_what_is_fatal_stops(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, world = there
    finds(world, monkeypatch, WHOSE, CLOSED)
    with pytest.raises(ProviderError) as caught:
        available_offers.preview_offers(world, Request(NAME), LeaseLimits())
    assert (caught.value.message, caught.value.hint) == ("the shop is closed", "come back tomorrow")
    assert "offers" not in cloud.calls()


def test_the_doctor_warns_of_what_is_wrong_alone(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    _, world = there
    finds(world, monkeypatch, WHOSE, SLOW)
    monkeypatch.setattr(doctor, "_check_user_setup", lambda *_, **__: [])
    report = doctor.check_provider(world, Request(NAME), "")
    theirs = [(one.level, one.what, one.say, one.hint) for one in report.findings if one.where == NAME]
    assert theirs == [
        ("note", "account", "the account is alice's", "--profile for another"),
        ("warning", "setup", "the line is slow", "move house"),
    ]
    assert report.exit_code == 0


@pytest.mark.parametrize(("identity", "said"), [(None, ["key-none"]), ("/keys/lab", [])])
def test_a_key_that_is_named_is_not_missing(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, identity: str | None, said: list[str]
) -> None:
    _, world = there
    none = note("key-none", "there is no SSH key here", "")
    monkeypatch.setattr(doctor, "_check_user_setup", lambda _, needs_key: [none] if needs_key else [])
    monkeypatch.setattr(doctor, "is_rented", lambda _: False)
    report = doctor.check_provider(world, Request(NAME, options={"identity": identity}), "")
    assert [one.what for one in report.findings if one.what == "key-none"] == said
