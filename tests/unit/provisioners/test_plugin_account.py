"""A provider of another wheel has its keys where ours have theirs: `.env`, the guard, and what is said of both."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.request import parse_environment
from gpuops.commands.doctor import doctor
from gpuops.core import provider as contract
from gpuops.core.account_variables import OURS, AccountVariables
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, UsageError
from gpuops.core.models import DOTENV, Payer, Request
from gpuops.core.settings import load
from gpuops.guard import daemon, guard_heartbeat
from gpuops.offers.billing_account import refuse_dotenv
from provisioners import registry
from tests.fakes.provider import NAME, Cloud, Scripted, surroundings
from tests.unit.guard.test_guard_heartbeat import row
from tests.unit.provisioners.test_registry import bring

KEY, URL = "SCRIPTED_KEY", "SCRIPTED_URL"
OLD, NEW = {KEY: "old"}, {KEY: "new"}


class Keyed(Scripted):
    """It notes what it was given."""

    def __init__(self, context: contract.Context) -> None:
        super().__init__(context)
        self.given = dict(context.dotenv)
        self.credential = context.credential(self.credentials, lambda: None)

    def payer(self, request: Request, patience_s: float) -> Payer:  # noqa: ARG002
        return Payer("me", self.credential.source if self.credential else "")


class Silent(Scripted):
    """It was written before credentials were declared."""

    credentials: Any = property(lambda _: (_ for _ in ()).throw(AttributeError))
    surroundings: Any = property(lambda _: (_ for _ in ()).throw(AttributeError))


def silent(context: contract.Context) -> Silent:
    return Silent(context)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    cloud, world = surroundings(tmp_path, monkeypatch)
    bring(cloud, f"{NAME} = {__name__}:Keyed")
    guard_heartbeat.lock_path(world.home, 1)
    return cloud, world


def test_ours_declare_theirs_in_the_same_way(there: tuple[Cloud, Context]) -> None:
    _, world = there
    assert OURS.keys() == registry.BUILT_IN.keys()
    for name in registry.BUILT_IN:
        loaded = world.provisioner(name)
        declared = AccountVariables(tuple(loaded.credentials), tuple(loaded.surroundings))
        assert declared == registry.account_variables(name) == OURS[name]
    assert registry.account_variables(NAME) == AccountVariables((KEY,), (URL,))
    assert registry.account_variables("nobody") == AccountVariables()


def test_a_key_in_dotenv_reaches_its_own_provider_alone(there: tuple[Cloud, Context]) -> None:
    _, world = there
    (world.folder / ".env").write_text(f"{KEY}=mine\nRUNPOD_API_KEY=theirs\nHF_TOKEN=nobodys\n{URL}=http://x\n")
    settings = load(world.folder, {}, {})
    assert settings.env_values == {}
    world = replace(world, dotenv=settings.dotenv, provisioners={})
    inner: Any = world.provisioner(NAME)
    assert inner.inner.given == {KEY: "mine"}
    assert inner.inner.credential == contract.Credential(DOTENV, {KEY: "mine"})


@pytest.mark.parametrize(("source", "used"), [(DOTENV, "projects"), (KEY, "exported")])
def test_a_cluster_is_ended_with_the_key_that_it_was_rented_with(
    there: tuple[Cloud, Context], source: str, used: str
) -> None:
    """Typed in another folder, with another key exported."""
    _, world = there
    project = world.folder / "project"
    project.mkdir()
    (project / ".env").write_text(f"{KEY}=projects\n")
    world = replace(world, env={**world.env, KEY: "exported"}, provisioners={})
    lab = replace(row(NAME), folder=project, offer={"payer": {"account": "me", "source": source}})
    assert lab.payer == Payer("me", source)
    loaded: Any = world.provisioner_of(lab)
    assert loaded.inner.credential.values == {KEY: used}


def test_a_guard_whose_keys_do_not_serve_is_replaced(there: tuple[Cloud, Context]) -> None:
    _, world = there
    lab = row(NAME)

    def must_be_replaced(environ: dict[str, str]) -> bool:
        return guard_heartbeat.must_be_replaced(world.home, lab, environ, time.monotonic())

    guard_heartbeat.start(world.home, lab, OLD)
    guard_heartbeat.start(world.home, lab, {})
    assert must_be_replaced(OLD), "it was rented with that one"
    guard_heartbeat.start(world.home, lab, OLD)
    assert not must_be_replaced(NEW), "there is no need"
    guard_heartbeat.record_refusal(world.home, lab, AuthFailed("no such key", "make another"))
    assert must_be_replaced(NEW)
    assert not must_be_replaced(OLD), "the same would be refused again"
    text = "".join(path.read_text() for path in (world.home / guard_heartbeat.FOLDER).iterdir())
    assert OLD[KEY] not in text


def test_status_promises_no_takeover_that_does_not_come(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    takes_over = "then type `gpuops status` again: the guard takes over new ones"
    assert guard_heartbeat.describe_renewal(NAME) == guard_heartbeat.describe_renewal("aws") == takes_over
    bring(cloud, f"{NAME} = {__name__}:silent")
    assert "`gpuops down NAME`" in guard_heartbeat.describe_renewal(NAME)
    assert "takes over new ones" not in guard_heartbeat.describe_renewal(NAME)
    loaded = world.provisioner(NAME)
    assert (loaded.credentials, loaded.surroundings) == ((), ()), "it is loaded: what it has rented must end"


def test_where_the_key_is_sent_no_project_decides(there: tuple[Cloud, Context]) -> None:
    _, world = there
    world = replace(world, dotenv={KEY: "k", URL: "http://203.0.113.9"}, provisioners={})
    with pytest.raises(UsageError) as caught:
        refuse_dotenv(world, NAME)
    assert caught.value.message == f"{URL} has no effect in .env"
    refuse_dotenv(replace(world, dotenv={KEY: "k"}), NAME)


def test_the_guard_has_the_key_of_the_project(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, world = there
    project = world.folder / "project"
    project.mkdir()
    (project / ".env").write_text(f"{KEY}=projects\n")
    monkeypatch.setenv("SCRIPTED", str(cloud.folder))
    monkeypatch.delenv(KEY, raising=False)
    loaded: Any = daemon.make_context(world.home, project).provisioner(NAME)
    assert loaded.inner.credential == contract.Credential(DOTENV, {KEY: "projects"})


def test_doctor_says_which_account_pays_and_what_has_no_effect(there: tuple[Cloud, Context]) -> None:
    _, world = there
    world = replace(world, dotenv={KEY: "k", URL: "http://203.0.113.9"}, provisioners={})
    found = doctor._payer_findings(world, Request(NAME), named=True)
    assert [one.say for one in found] == [
        "what is rented here: paid by me (key from .env)", f"{URL} has no effect in .env"
    ]  # fmt: skip


@pytest.mark.parametrize("word", [KEY, f"{KEY}=sk"])
def test_no_key_is_recorded_with_a_run(there: tuple[Cloud, Context], word: str) -> None:
    assert there
    with pytest.raises(UsageError, match="would write a provider's key down with the run"):
        parse_environment([word], {KEY: "sk"})
