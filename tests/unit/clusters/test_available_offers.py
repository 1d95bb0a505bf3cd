"""What is said before anything is rented: a name that is taken, keys of hosts, offers that are none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpuops.cli.entry import execute
from gpuops.clusters import available_offers
from gpuops.core.context import Context
from gpuops.core.errors import (
    NoCapacity,
    ProviderError,
)
from gpuops.core.models import Lease, Problem, Request
from tests.conftest import no_guards
from tests.fakes.provider import NAME, Cloud, Scripted, surroundings
from tests.unit.clusters.test_creation import TWO, Yes, up


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


def test_a_name_that_is_taken_is_said_before_anybody_is_asked(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cloud, world = there
    for name, value in (("GPUOPS_HOME", world.home), ("SCRIPTED", cloud.folder)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(world.folder)
    world.ledger.intend(provider=NAME, name="lab", folder=world.folder, ephemeral=False, token="t", request={},
                        boot_deadline=time.time() + 86400, lease=Lease(), owner_process=world.me, now=0.0)  # fmt: skip
    with no_guards(world.home):
        assert execute(["up", NAME, "--yes", "--name", "lab"]) == 2
    assert "a cluster named lab exists already" in capfd.readouterr().err
    assert "offers" not in cloud.calls()


@pytest.mark.parametrize("hosts", [1, 3])
def test_keys_of_several_hosts_are_one_question(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hosts: int
) -> None:
    _, world = there
    says = [f"host{number} is an unknown host, its key is SHA256:{number}" for number in range(hosts)]
    asked: list[str] = []
    world.yes, world.out = False, Yes(asked)

    def preflight(_: Scripted, request: Request) -> list[Problem]:
        return [] if request.options.get("accept-new") else [Problem(say, "", settle="accept-new") for say in says]

    monkeypatch.setattr("tests.fakes.provider.Scripted.preflight", preflight)
    available_offers.find_offers(world, TWO)
    said = capsys.readouterr().err.splitlines()
    if hosts == 1:
        assert (said, asked) == ([], [f"{says[0]}: go on?"])
    else:
        assert (said, asked) == (says, ["all 3 are right: go on?"])


def test_an_offer_of_fewer_nodes_is_none(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    _, world = there
    provisioner = world.provisioner(NAME)
    two = provisioner.offers(TWO)
    monkeypatch.setattr("tests.fakes.provider.Scripted.offers", lambda *_: two)
    with pytest.raises(NoCapacity):
        available_offers.find_offers(world, Request(NAME, nodes=3))


@pytest.mark.parametrize("price", [0.0, -1.0, float("inf"), float("nan"), "1.00"])
def test_who_rents_says_a_price(there: tuple[Cloud, Context], price: float | str) -> None:
    cloud, world = there
    cloud.play(offers_at=[price])
    with pytest.raises(ProviderError, match="offer 0 is left out: it has no price"):
        up(world)
    assert cloud.machines() == []


def test_a_price_that_is_none_keeps_no_other_offer_from_being_tried(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(offers_at=[-1.0, 2.5])
    assert [offer.id for offer in available_offers.find_offers(world, TWO)[1]] == ["offer-1"]
