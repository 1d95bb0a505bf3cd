"""Whose account a key is of, where the key may be another one by the next question."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.core.errors import AuthFailed, Unknown
from gpuops.core.models import Resource
from provisioners.base import Context
from provisioners.kit.account import AccountFacts, KeyAccount
from provisioners.kit.json_api import JsonApi
from provisioners.kit.service import Service
from tests.fakes.provider import FakeClock

OWNERS = {"old": "u1", "new": "u1", "stranger's": "u2"}


class Account:
    """Keys of two accounts, of which one is exported."""

    def __init__(self, home: Path) -> None:
        self.env = {"A_KEY": "old"}
        self.asked: list[str] = []
        clock = FakeClock()
        api = JsonApi(
            Service("Somebody", "https://x", "A_URL", "A_KEY", "x"), Context("o", home, self.env, clock=clock)
        )
        self.inner = KeyAccount(api, clock, self._ask)

    def _ask(self) -> AccountFacts:
        self.asked.append(self.env["A_KEY"])
        return AccountFacts(OWNERS[self.env["A_KEY"]], f"{OWNERS[self.env['A_KEY']]}@x", balance=3.0)


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path)


def made(account: Account) -> Resource:
    account.inner.facts()
    return Resource("machine", "m1", "r", "gpuops-o-lab-0", True, data={"account": account.inner.data()})


def test_another_key_is_asked_for_its_own_account(account: Account) -> None:
    assert account.inner.payer(5.0).account == "u1@x"
    assert account.inner.payer(5.0).account == "u1@x"
    account.env["A_KEY"] = "stranger's"
    assert account.inner.payer(0).account == "", "not the one before"
    assert account.inner.facts().id == "u2"
    assert account.asked == ["old", "stranger's"]


def test_what_is_not_found_is_gone_by_a_key_of_the_same_account_alone(account: Account) -> None:
    machine = made(account)
    account.env["A_KEY"] = "new"
    account.inner.check(machine)
    account.env["A_KEY"] = "stranger's"
    with pytest.raises(AuthFailed, match="made with another API key"):
        account.inner.check(machine)


def test_a_payer_that_cannot_be_asked_for_is_nobody_and_its_key_has_a_source(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> AccountFacts:
        raise Unknown("no answer", "try again")

    monkeypatch.setattr(account.inner, "_ask", fail)
    payer = account.inner.payer(5.0)
    assert (payer.account, payer.source) == ("", "A_KEY")
