"""The key of a RunPod account: which one counts, what another one does not see, and that it is sent nowhere else."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gpuops.ledger.store import Ledger
from tests.conftest import Shell, until
from tests.fakes.runpod import FakeRunPod, Life
from tests.fakes.runpod.faults import deaf_delete
from tests.files import written_in
from tests.integration.cli.renter import CONSOLE, MAKE_ONE, NO_KEY, UP, Renter, config, expect
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("no_guard_stays")

OTHER_KEY = "use that key again: export RUNPOD_API_KEY=…"
OFFER = "1 pod, 1 x RTX 4090 (24 GB each), secure cloud, stock high"


def left_behind(renter: Renter) -> None:
    """A pod that its cluster's end did not end, and goes on costing."""
    renter.deaf(deaf_delete(times=None))
    assert renter.type(*UP).code == 5


@pytest.mark.parametrize("key", ["another account's", "a wrong one", "none"])
def test_with_another_key_nothing_is_gone(renter: Renter, key: str) -> None:
    left_behind(renter)
    if key == "none":
        renter.no_key()
    else:
        renter.key(renter.fake.other_key if key == "another account's" else "rpa_NOBODYS")
    why = {
        "another account's": "{mark} was made with another API key, and this one does not see it",
        "a wrong one": "RunPod does not accept the API key: invalid bearer token",
        "none": NO_KEY,
    }[key]
    good = {
        "another account's": OTHER_KEY,
        "a wrong one": f"look at your keys: {CONSOLE}",
        "none": MAKE_ONE,
    }[key]
    said = renter.type("down", "lab", "--json")
    expect(said, f"{{mark}} may still be there and bill $0.70/h: {why}", f"{good}; then: gpuops down lab", 5, renter)
    forced = renter.type("down", "lab", "--force", "--json")
    expect(forced, f"{{mark}} may still be there and bill $0.70/h: {why}", f"{good}; then: gpuops down lab", 5, renter)
    assert len(renter.fake.running()) == 1
    assert renter.live() == ["lab"]
    reaped = renter.type("reap", "--json")
    if key == "another account's":  # which is asked, and has nothing; what is being ended already is left to that
        assert json.loads(reaped.out)["closed"] == []
    else:
        why = f"something may still be there: runpod could not be asked: {why}"
        expect(reaped, why, f"{good}; then: gpuops reap", 5, renter)
        asked = why.partition("asked: ")[2]
        assert renter.type("status", "--cloud").err == f"note: runpod could not be asked: {asked}; {good}\n"
    assert renter.live() == ["lab"]
    renter.fake.script.clear()
    renter.key(renter.fake.account_key)
    assert renter.type("down", "lab").code == 0
    renter.expect_nothing_left()


def test_reap_with_another_key_closes_nothing(renter: Renter) -> None:
    left_behind(renter)
    ledger = Ledger.open(renter.desk.home)
    (row,) = ledger.clusters()
    ledger.set_cluster(row.id, state="up", owner_process=None)  # as if it had been seen ready
    ledger.close()
    renter.key(renter.fake.other_key)
    said = renter.type("reap", "--json")
    why = "runpod could not be asked about lab: {mark} was made with another API key, and this one does not see it"
    expect(said, f"something may still be there: {why}", f"{OTHER_KEY}; then: gpuops reap", 5, renter)
    assert renter.live() == ["lab"]


def test_a_renewed_key_of_the_same_account(money: Renter) -> None:
    """A pod that is there no more is gone for sure only where it is known that both keys are of one account."""
    left_behind(money)
    money.fake.end(money.fake.running()[0], "GONE")
    money.key(money.fake.renew_key())
    said = money.type("down", "lab")
    assert (said.code, said.err.splitlines()[-1]) == (0, "lab is gone")


# ---- which key, sent where


SHAPES = {"runpodctl": 'apiKey = "{key}"\n', "its Python package": '[default]\napi_key = "{key}"\n'}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_key_of_its_own_tools(renter: Renter, shape: str) -> None:
    config(SHAPES[shape].format(key=renter.fake.account_key))(renter)
    assert renter.type(*UP, "--dry-run").code == 0
    renter.key("rpa_NOBODYS")  # what is exported counts first
    assert renter.type(*UP, "--dry-run").code == 3


def test_a_key_of_the_project(renter: Renter) -> None:
    renter.no_key()
    renter.desk.write(".env", f"RUNPOD_API_KEY={renter.fake.account_key}\n")
    said = renter.type(*UP, "--dry-run")
    whose = "account unknown (key from .env)"
    assert (said.code, said.out.splitlines()[-1], said.err) == (0, f"would create: {OFFER}, $0.70/h, {whose}", "")
    config(f'apiKey = "{renter.fake.other_key}"\n')(renter)  # RunPod's own file counts first
    assert renter.type(*UP, "--dry-run").out.endswith("(key from ~/.runpod/config.toml)\n")
    renter.key("rpa_NOBODYS")
    assert renter.type(*UP, "--dry-run").code == 3
    renter.key("")
    assert renter.type(*UP, "--dry-run").code == 0


@pytest.mark.parametrize("words", [("status", "--cloud"), ("reap",), ("down",), ("doctor", "runpod")])
def test_a_project_sends_no_key_elsewhere(renter: Renter, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Looking and ending go on, and ask where the key belongs."""
    with FakeRunPod(tmp_path / "thief") as thief:
        renter.desk.write(".env", f"RUNPOD_API_URL={thief.url}\nRUNPOD_API_BASE_URL={thief.base_url}\n")
        said = renter.type(*words)
        assert thief.requests == []
    assert said.code == 0
    assert "note: RUNPOD_API_URL has no effect in .env\n" in said.err
    assert words == ("down",) or renter.fake.asked("GET", "/pods")


# ---- looking


def test_doctor(renter: Renter) -> None:
    well = renter.type("doctor", "runpod")
    assert (well.code, "error" in well.out) == (0, False)
    assert "runpod\n  note: the account answers; its balance is unknown\n" in well.out
    told = json.loads(renter.type("doctor", "runpod", "--json").out)["findings"]
    assert "account" in [one["what"] for one in told]
    renter.key("rpa_NOBODYS")
    wrong = renter.type("doctor", "runpod")
    assert wrong.code == 3
    assert (
        "runpod\n  error: RunPod does not accept the API key: invalid bearer token\n"
        f"    hint: look at your keys: {CONSOLE}\n"
    ) in wrong.out
    renter.no_key()
    found = json.loads(renter.type("doctor", "runpod", "--json").out)["findings"]
    assert {"level": "error", "what": "setup", "say": NO_KEY, "hint": MAKE_ONE, "where": "runpod"}.items() <= next(
        one for one in found if one["where"] == "runpod"
    ).items()


# ---- the key stays here


def test_not_a_byte_of_a_key_goes_anywhere_else(shell: Shell, fake: FakeRunPod, tmp_path: Path) -> None:
    """A whole command, and the guard after it: what RunPod was told, what is written down, what every process shows."""
    account_key, others = "rpa_CANARYINTHEMINE0123456789ABCDEF", ["canary-of-aws-4711", "canary-of-wandb-4711"]
    fake.service.own.key = account_key
    shell.env |= {**fake.env, "HOME": str(tmp_path)}
    del shell.env["RUNPOD_API_KEY"]
    dotenv = shell.write(
        ".env", f"RUNPOD_API_KEY={account_key}\nAWS_SECRET_ACCESS_KEY={others[0]}\nWANDB_API_KEY={others[1]}\n"
    )
    fake.life = Life(address="127.0.0.1", port=free_port())
    fake.play(deaf_delete())
    up = shell.start("up", "runpod", "--yes", "--gpu-type", "4090", "--timeout", "0.05", "--name", "lab")
    shown = []
    while up.poll() is None:
        shown += command_lines()
        time.sleep(0.2)
    shown += command_lines()
    out, err = up.communicate()
    assert "was not ready" in err, err
    until(lambda: fake.running() == [], "the pod has ended")

    assert fake.requests
    for request in fake.requests:
        told = request.headers.pop("authorization")
        assert told == f"Bearer {account_key}"
        rest = f"{request.path} {request.query} {request.headers} {request.body} {request.raw!r}"
        for canary in (account_key, *others):
            assert canary not in rest, request
    written = written_in(shell.home, shell.folder)
    assert written.pop(dotenv)
    assert written.keys() >= {shell.home / "guard.log", shell.home / "ledger.db"}
    for canary in (account_key, *others):
        assert canary not in out + err
        assert not [line for line in shown if canary in line]
        assert not [path for path, text in written.items() if canary.encode() in text]
        assert not [pod for pod in fake.pods.values() if canary in f"{pod.env} {pod.args}"]


def command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return found
