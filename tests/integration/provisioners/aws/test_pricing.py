"""What tests/unit/provisioners/aws/test_pricing.py leaves to real processes or sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioners.aws import pricing
from provisioners.aws.account import Account
from tests.fakes.aws import FakeAWS, Fault
from tests.fakes.aws.known import kinds


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAWS]:
    with FakeAWS(tmp_path / "aws") as running:
        yield running


@pytest.fixture
def account(fake: FakeAWS, tmp_path: Path) -> Account:
    return Account(fake.env, tmp_path / "home")


def test_spot_prices_by_zone_in_one_question(fake: FakeAWS, account: Account) -> None:
    fake.price["g5.12xlarge", "us-east-1b"] = 2.10
    found = pricing.read_spot_prices(account, "us-east-1", ["g5.12xlarge", "g6.12xlarge"])
    assert found["g5.12xlarge", "us-east-1b"] == 2.10
    assert {kind for kind, _ in found} == {"g5.12xlarge", "g6.12xlarge"}
    assert [one.action for one in fake.requests] == ["DescribeSpotPriceHistory"]


def test_on_demand_prices_are_those_of_the_plain_machine(fake: FakeAWS, account: Account) -> None:
    fake.on_demand["g5.12xlarge", "us-west-2"] = 5.5
    four = [kind for kind in kinds() if kind.type in ("g5.12xlarge", "g6.12xlarge")]
    found = pricing.read_on_demand_prices(account, "us-west-2", four)
    assert found == {"g5.12xlarge": 5.5, "g6.12xlarge": pytest.approx(4.602)}
    assert {one.region for one in fake.requests} == {"us-east-1"}, "the price list of all regions is there"


def test_the_price_list_is_asked_elsewhere_where_its_first_place_does_not_answer(
    fake: FakeAWS, account: Account
) -> None:
    """An organization may close regions that it does not use."""
    fake.play(Fault("GetProducts", region="us-east-1", what="denied", times=None))
    four = [kind for kind in kinds() if kind.type in ("g5.12xlarge", "g6.12xlarge")]
    assert set(pricing.read_on_demand_prices(account, "us-west-2", four)) == {"g5.12xlarge", "g6.12xlarge"}
    first, *others = [one.region for one in fake.requests]
    assert (first, set(others)) == ("us-east-1", {"eu-central-1"})
    pricing.read_disk_price(account, "us-west-2")
    assert fake.requests[-1].region == "eu-central-1", "which has answered"


def test_a_disk_costs_what_it_does_in_its_region(fake: FakeAWS, account: Account) -> None:
    assert pricing.read_disk_price(account, "us-east-1") == pytest.approx(0.08 / 730)
    assert pricing.read_disk_price(account, "eu-west-1") > pricing.read_disk_price(account, "us-east-1")
    fake.deny("pricing:GetProducts")
    assert pricing.read_disk_price(account, "us-east-1") == pytest.approx(0.10 / 730), "rather too high than too low"
