"""Whose account is used: never that of whoever wrote the project, and always one that is named."""

# ruff: noqa: F811 - a fixture is named where it is used

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import AuthFailed, NotSetUp, UsageError
from gpuops.core.settings import KEYS, load, surroundings
from gpuops.ledger.store import Ledger
from gpuops.offers import billing_account as payers
from provisioners.aws import account as aws_access
from provisioners.aws import api, credentials
from provisioners.base import Context
from provisioners.runpod.service import SERVICE as RUNPOD
from tests.fakes.aws import Fault as AwsFault
from tests.fakes.runpod import Fault
from tests.fakes.runpod.faults import deaf_delete
from tests.integration.cli.conftest import desk  # noqa: F401 - a fixture
from tests.integration.cli.renter import UP, Renter, fake, money, no_guard_stays, renter  # noqa: F401
from tests.integration.cli.tenant import ONE, Tenant, tenant  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_guard_stays")

DRY = (*UP, "--dry-run")
OFFER = "1 pod, 1 x RTX 4090 (24 GB each), secure cloud, stock high, $0.70/h"
AWS_DRY = ("up", "aws", "--dry-run", "--gpu-type", "g5.12xlarge")
ATTACKER = {"AWS_ACCESS_KEY_ID": "AKIAATTACKER00000000", "AWS_SECRET_ACCESS_KEY": "attacker"}


def track(folder: Path, name: str = ".env") -> None:
    for words in (("init", "-q"), ("add", "-f", name)):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def dotenv(folder: Path, values: Mapping[str, str]) -> None:
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))


def store(home: Path, key: str) -> None:
    (home / ".runpod").mkdir(exist_ok=True)
    (home / ".runpod" / "config.toml").write_text(f'apiKey = "{key}"\n')


def runpod_saw(one: Renter) -> set[str]:
    return {request.headers["authorization"].removeprefix("Bearer ") for request in one.fake.requests}


def aws_saw(one: Tenant) -> set[str]:
    return {request.key for request in one.fake.requests if request.key}


def unexport(one: Renter | Tenant) -> None:
    for name in ("RUNPOD_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        one.patch.delenv(name, raising=False)


# ---- the attack, over the command line


def test_a_repository_does_not_move_its_reader_at_runpod(renter: Renter) -> None:
    unexport(renter)
    store(renter.desk.home.parent, renter.fake.account_key)
    dotenv(renter.desk.folder, {"RUNPOD_API_KEY": renter.fake.other_key})
    for words in (DRY, ("doctor", "runpod"), ("train", "single", "--on", "runpod", "--gpu-type", "4090", "--dry-run")):
        assert renter.type(*words).code == 0
        assert runpod_saw(renter) == {renter.fake.account_key}


@pytest.mark.parametrize("mine", ["the default profile", "AWS_PROFILE", "--profile", "exported keys"])
def test_a_repository_does_not_move_its_reader_at_aws(tenant: Tenant, mine: str) -> None:
    if mine != "exported keys":
        unexport(tenant)
    if mine == "AWS_PROFILE":
        tenant.patch.setenv("AWS_PROFILE", "work")
    dotenv(tenant.desk.folder, ATTACKER)
    said = tenant.type(*AWS_DRY, *(("--profile", "work") if mine == "--profile" else ()))
    assert said.code == 0, said.err
    assert aws_saw(tenant) == {tenant.fake.key}


@pytest.mark.parametrize("other_key", ["none", "exported", "stored"])
def test_keys_in_a_tracked_file_are_refused(renter: Renter, other_key: str) -> None:
    unexport(renter)
    if other_key == "exported":
        renter.key(renter.fake.account_key)
    elif other_key == "stored":
        store(renter.desk.home.parent, renter.fake.account_key)
    dotenv(renter.desk.folder, {"RUNPOD_API_KEY": renter.fake.other_key, "AWS_REGION": "us-west-2"})
    track(renter.desk.folder)
    train = ("train", "single", "--on", "runpod", "--gpu-type", "4090", "--yes")
    for words in (DRY, UP, train, (*train, "--dry-run"), ("quota", "aws"), ("prove", "runpod", "--yes")):
        said = renter.type(*words)
        assert said.code == 2, said
        why = f"{renter.desk.folder / '.env'} holds RUNPOD_API_KEY, and git tracks that file"
        assert said.err.splitlines()[-2:] == [
            f"error: {why}: keys that come with a project are not used",
            "hint: git rm --cached .env, and where it was ever pushed make a new key and delete this one",
        ]
    assert renter.fake.requests == []
    assert "git tracks that file" in renter.type("doctor", "runpod").out
    assert renter.type("up", "local", "--dry-run").code == 0, "which needs no key"
    subprocess.run(["git", "rm", "-q", "--cached", ".env"], cwd=renter.desk.folder, check=True)
    assert renter.type(*DRY).code == 0, "what was told has helped"


def test_a_tracked_file_without_keys_is_nobodys_concern(renter: Renter) -> None:
    dotenv(renter.desk.folder, {"AWS_REGION": "us-west-2", "RUNPOD_API_KEY": "", "WANDB_API_KEY": "w"})
    track(renter.desk.folder)
    assert renter.type(*DRY).code == 0


def test_a_secret_is_not_taken_from_a_tracked_file(renter: Renter) -> None:
    dotenv(renter.desk.folder, {"WANDB_API_KEY": "attackers"})
    track(renter.desk.folder)
    renter.desk.write(".gpuopsignore", ".env\n")
    words = ("run", "--secret", "WANDB_API_KEY", "--dry-run", "--", "true")
    said = renter.type(*words)
    assert (said.code, "holds WANDB_API_KEY, and git tracks that file" in said.err) == (2, True)
    renter.patch.setenv("WANDB_API_KEY", "mine")
    assert renter.type(*words).code == 0


def test_another_spelling_is_the_same_file(tmp_path: Path) -> None:
    """As on file systems that take `.ENV` for `.env`; here by a second name."""
    dotenv(tmp_path, {"RUNPOD_API_KEY": "k"})
    os.link(tmp_path / ".env", tmp_path / ".ENV")
    payers.refuse_tracked(tmp_path, KEYS)
    track(tmp_path, ".ENV")
    with pytest.raises(UsageError, match="git tracks that file"):
        payers.refuse_tracked(tmp_path, KEYS)


# ---- looking and ending go on, in the account that was rented in


def rented(renter: Renter) -> None:
    """A pod that the project's `.env` has paid for, and that its cluster's end did not end."""
    unexport(renter)
    dotenv(renter.desk.folder, {"RUNPOD_API_KEY": renter.fake.account_key})
    renter.deaf(deaf_delete(times=None))
    assert renter.type(*UP).code == 5
    renter.fake.script.clear()
    assert len(renter.fake.running()) == 1


def as_before(home: Path) -> None:
    """The ledger of a gpuops that did not note who pays."""
    ledger = Ledger.open(home)
    (row,) = ledger.clusters()
    ledger.set_cluster(row.id, offer={name: one for name, one in row.offer.items() if name != "payer"})
    ledger.close()


def other_key_stored(one: Renter) -> None:
    store(one.desk.home.parent, one.fake.other_key)


def other_key_exported(one: Renter) -> None:
    one.key(one.fake.other_key)


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(("other", "before"), [
    (other_key_stored, False), (other_key_exported, False), (other_key_stored, True),
])  # fmt: skip
def test_down_ends_what_a_project_paid_for(
    renter: Renter, tmp_path: Path, other: Callable[[Renter], None], before: bool, elsewhere: bool, tracked: bool
) -> None:
    rented(renter)
    if before:
        as_before(renter.desk.home)
    other(renter)
    if tracked:
        track(renter.desk.folder)
    if elsewhere:  # a folder with keys of its own, which are nothing to this cluster
        (tmp_path / "elsewhere").mkdir()
        dotenv(tmp_path / "elsewhere", {"RUNPOD_API_KEY": "rpa_NOBODYS"})
        renter.patch.chdir(tmp_path / "elsewhere")
    assert renter.type("status").code == 0
    assert renter.type("logs").code == 2, "there is no run"
    said = renter.type("down", "lab")
    assert (said.code, said.err.splitlines()[-1]) == (0, "lab is gone"), said
    renter.expect_nothing_left()


@pytest.mark.parametrize("before", [False, True])
def test_down_ends_what_a_project_paid_for_at_aws(tenant: Tenant, before: bool) -> None:
    mine = {"AWS_ACCESS_KEY_ID": tenant.fake.key, "AWS_SECRET_ACCESS_KEY": tenant.fake.secret}
    unexport(tenant)
    dotenv(tenant.desk.folder, mine)
    (tenant.fake.folder / "credentials").unlink()
    tenant.fake.deny("ec2:TerminateInstances")
    assert tenant.type(*ONE).code == 5
    tenant.fake.permit()
    if before:
        as_before(tenant.desk.home)
    text = "".join(f"{name.lower()} = {value}\n" for name, value in ATTACKER.items())  # any other account's
    (tenant.fake.folder / "credentials").write_text(f"[default]\n{text}")
    said = tenant.type("down", "lab")
    assert said.code == 0, said
    text = "".join(f"{name.lower()} = {value}\n" for name, value in mine.items())  # for `reap`, later
    (tenant.fake.folder / "credentials").write_text(f"[default]\n{text}")
    tenant.expect_nothing_left(said)


def test_another_key_does_not_make_down_believe_that_nothing_is_left(renter: Renter) -> None:
    """Nothing is known of a pod whose making was never answered, but whose key it was made with."""
    rented(renter)
    ledger = Ledger.open(renter.desk.home)
    ledger.db.execute("UPDATE resources SET state = 'willed', resource = NULL")
    ledger.close()
    other_key_stored(renter)
    assert renter.type("down", "lab").code == 0
    assert renter.fake.running() == []


@pytest.mark.parametrize("words", [("status", "--cloud"), ("reap", "--yes"), ("down",), ("runs",)])
@pytest.mark.parametrize("key", ["rpa_NOBODYS", "no key at all"])
def test_looking_and_ending_are_blocked_by_no_file(renter: Renter, words: tuple[str, ...], key: str) -> None:
    dotenv(renter.desk.folder, {"RUNPOD_API_KEY": key})
    track(renter.desk.folder)
    assert renter.type(*words).code == 0


def test_reap_asks_both_accounts_and_takes_nothing_back_from_the_second(renter: Renter) -> None:
    renter.type("stop")  # which chooses the mark
    renter.fake.add_pod(f"gpuops-{renter.owner}-mine-0")
    renter.fake.add_pod(f"gpuops-{renter.owner}-theirs-0", key=renter.fake.other_key)
    dotenv(renter.desk.folder, {"RUNPOD_API_KEY": renter.fake.other_key})
    said = renter.type("reap", "--adopt")
    assert "theirs is in the account of the key in .env, behind the key that comes first" in said.err
    assert "theirs" not in renter.live()
    assert renter.type("reap", "--yes").code == 0
    assert renter.fake.running() == []


# ---- who pays is said


def told(said: Any) -> Any:
    return json.loads(said.out)["payer"]


@pytest.mark.parametrize("source", ["RUNPOD_API_KEY", "~/.runpod/config.toml", ".env"])
def test_the_price_names_who_pays_at_runpod(money: Renter, source: str) -> None:
    key = money.fake.account_key
    unexport(money)
    {"RUNPOD_API_KEY": money.key, ".env": lambda key: dotenv(money.desk.folder, {"RUNPOD_API_KEY": key})}.get(
        source, lambda key: store(money.desk.home.parent, key)
    )(key)
    whose = f"paid by somebody@example.com (key from {source})"
    assert money.type(*DRY).out.splitlines()[-1] == f"would create: {OFFER}, {whose}"
    assert told(money.type(*DRY, "--json")) == {"account": "somebody@example.com", "source": source}
    assert f"what is rented here: {whose}" in money.type("doctor", "runpod").out
    money.fake.requests.clear()
    money.deaf()
    assert f"{OFFER}, {whose}; until " in money.type(*UP).err
    assert len([one for one in money.fake.requests if one.path == "/graphql"]) == 1
    questions: list[str] = []
    money.patch.setattr("gpuops.cli.terminal.output.Output.interactive", True)
    money.patch.setattr(
        "gpuops.cli.terminal.output.Output.confirm", lambda _, question: bool(questions.append(question))
    )
    assert money.type(*(word for word in UP if word != "--yes")).code == 2
    (question,) = questions
    assert question.startswith(f"{OFFER}, {whose}; until ")


@pytest.mark.parametrize("how", ["no package", "denied", "no address", "cut"])
def test_an_account_that_is_not_told_stops_nobody(money: Renter, how: str) -> None:
    if how == "no package":
        money.patch.setattr("provisioners.runpod.account.PROGRAM", "raise SystemExit(1)")
    elif how == "no address":
        money.fake.desk.hides_email = True
    else:
        money.play(Fault("POST /graphql", times=None, **({"cut": True} if how == "cut" else {"status": 403})))
    known = {"no address": f"RunPod account {money.fake.account_id}"}.get(how, "")
    said = money.type(*DRY, "--json")
    assert (said.code, told(said)) == (0, {"account": known, "source": "RUNPOD_API_KEY"})
    whose = f"paid by {known}" if known else "account unknown"
    assert money.type(*DRY).out.endswith(f", {whose} (key from RUNPOD_API_KEY)\n")


def test_an_account_that_is_not_told_in_time(money: Renter) -> None:
    money.patch.setattr(payers, "PAYER_WAIT_S", 0.2)
    money.patch.setattr("gpuops.offers.search.ACCOUNT_WAIT_FOR_OFFERS_S", 0.2)
    money.play(Fault("POST /graphql", times=None, hang_s=30.0))
    assert told(money.type(*DRY, "--json")) == {"account": "", "source": "RUNPOD_API_KEY"}


AWS_SOURCES = {
    "AWS_ACCESS_KEY_ID": (), "profile default": (), "profile work": ("--profile", "work"), ".env": (),
}  # fmt: skip


@pytest.mark.parametrize("source", AWS_SOURCES)
def test_the_price_names_who_pays_at_aws(tenant: Tenant, source: str) -> None:
    if source != "AWS_ACCESS_KEY_ID":
        unexport(tenant)
    if source == ".env":
        dotenv(tenant.desk.folder, {"AWS_ACCESS_KEY_ID": tenant.fake.key, "AWS_SECRET_ACCESS_KEY": tenant.fake.secret})
        (tenant.fake.folder / "credentials").unlink()
    account = f"AWS account {tenant.fake.account}, as gpuops-tester"
    said = tenant.type(*AWS_DRY, *AWS_SOURCES[source], "--json")
    assert (said.code, told(said)) == (0, {"account": account, "source": source}), said.err
    assert len(tenant.fake.asked("GetCallerIdentity")) == 1
    assert f", paid by {account} (key from {source})" in tenant.type(*AWS_DRY, *AWS_SOURCES[source]).out


@pytest.mark.parametrize("how", ["denied", "500", "silent"])
def test_an_aws_account_that_is_not_told_stops_nobody(tenant: Tenant, how: str) -> None:
    if how == "silent":
        tenant.patch.setattr(aws_access, "IDENTITY_TIMEOUT_S", 0.5)
    tenant.fake.play(AwsFault("GetCallerIdentity", what=how, times=None))
    said = tenant.type(*AWS_DRY, "--json")
    assert (said.code, told(said)) == (0, {"account": "", "source": "AWS_ACCESS_KEY_ID"}), said.err
    assert len(tenant.fake.asked("GetCallerIdentity")) == 1


# ---- the order, as a table over all that there may be

KEY = "rpa_{}"
RUNPOD_PLACES = list(itertools.product((None, "", " ", KEY.format("EXPORTED")), (None, "", KEY.format("STORED")),
                                       (None, "", " ", KEY.format("PROJECTS"))))  # fmt: skip


def runpod_key(home: Path, env: Mapping[str, str], dotenv: Mapping[str, str]) -> str:
    return RUNPOD.find_key(Context("0a1b2c3d", home, env, dotenv)).values["RUNPOD_API_KEY"]


@pytest.mark.parametrize(("exported", "stored", "project"), RUNPOD_PLACES)
def test_the_first_key_counts_at_runpod(
    tmp_path: Path, exported: str | None, stored: str | None, project: str | None
) -> None:
    environ = {"HOME": str(tmp_path)} | ({} if exported is None else {"RUNPOD_API_KEY": exported})
    if stored is not None:
        store(tmp_path, stored)
    if project is not None:
        dotenv(tmp_path, {"RUNPOD_API_KEY": project})
    settings = load(tmp_path, environ, {})
    there = [key.strip() for key in (exported, stored, project) if key and key.strip()]
    if not there:
        with pytest.raises(NotSetUp):
            runpod_key(tmp_path, surroundings(settings, environ), settings.dotenv)
        return
    assert runpod_key(tmp_path, surroundings(settings, environ), settings.dotenv) == there[0]


def test_a_file_that_cannot_be_read_does_not_give_way(tmp_path: Path) -> None:
    (tmp_path / ".runpod").mkdir()
    (tmp_path / ".runpod" / "config.toml").write_text("apiKey = oops")
    with pytest.raises(AuthFailed, match=r"config.toml cannot be read"):
        runpod_key(tmp_path, {"HOME": str(tmp_path)}, {"RUNPOD_API_KEY": "rpa_PROJECTS"})


ID, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
SHAPES: list[tuple[str, ...]] = [(), (ID, SECRET), (ID, SECRET, TOKEN), (ID,), (SECRET,), (TOKEN,)]


def keys(whose: str, names: tuple[str, ...]) -> dict[str, str]:
    return {name: f"{whose}-{name}" if name in names else "" for name in (ID, SECRET, TOKEN)}


@pytest.fixture
def no_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the handlers of requests, of which a session registers hundreds: here a thousand sessions ask nothing."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("botocore.handlers.BUILTIN_HANDLERS", [])


@pytest.mark.usefixtures("no_exports")
@pytest.mark.parametrize("flag", ["", "work", "gone"])
@pytest.mark.parametrize("exported", SHAPES, ids="+".join)
@pytest.mark.parametrize("profile", [None, "", "work", "bare", "gone"])
@pytest.mark.parametrize("default", [False, True])
def test_the_first_credentials_count_at_aws(
    tmp_path: Path, flag: str, exported: tuple[str, ...], profile: str | None, default: bool
) -> None:
    """Whole, or not at all: a half that comes first is refused, and nothing is put together."""
    sections = ["work", "default"] if default else ["work"]
    (tmp_path / "credentials").write_text(
        "".join(
            f"[{one}]\naws_access_key_id = {one}-{ID}\naws_secret_access_key = {one}-{SECRET}\n" for one in sections
        )
    )
    (tmp_path / "config").write_text("[default]\nregion = us-east-1\n[profile bare]\nregion = us-east-1\n")
    environ = {
        "HOME": str(tmp_path),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        **keys("exported", exported),
        **({} if profile is None else {"AWS_PROFILE": profile}),
    }
    for project in SHAPES:
        dotenv(tmp_path, keys("project", project))
        settings = load(tmp_path, environ, {})
        places = [
            ("profile", flag) if flag else None,
            ("exported", exported) if {ID, SECRET} & {*exported} else None,
            ("profile", profile) if profile else None,
            ("profile", "default") if default else None,
            ("project", project) if {ID, SECRET} & {*project} else None,
        ]
        first: tuple[str, Any] | None = next((one for one in places if one), None)

        def found() -> tuple[str, ...]:
            session, _ = api.ask(
                "find",
                credentials.session,
                env=surroundings(settings, environ),  # noqa: B023
                profile=flag,
                dotenv=settings.dotenv,  # noqa: B023
            )
            there = session.get_credentials()
            return tuple(one for one in (there.access_key, there.secret_key, there.token) if one)

        if first in (None, ("profile", "gone"), ("profile", "bare")) or (
            first and first[0] != "profile" and not {ID, SECRET} <= {*first[1]}
        ):
            with pytest.raises(AuthFailed):
                found()
        elif first and first[0] == "profile":
            assert found() == (f"{first[1]}-{ID}", f"{first[1]}-{SECRET}")
        elif first:
            assert found() == tuple(f"{first[0]}-{name}" for name in first[1])
