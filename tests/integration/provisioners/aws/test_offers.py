"""Offers: from what the service answers, in order, priced, and held against the quotas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import AuthFailed, GpuopsError, NoCapacity, QuotaExceeded, Rejected, UsageError
from gpuops.core.models import Offer, Request
from provisioners.aws import capacity, offers
from provisioners.aws.account import Account
from provisioners.aws.options import wishes
from provisioners.aws.quotas import STANDARD_ON_DEMAND, STANDARD_SPOT
from tests.fakes.aws import FakeAWS, Fault
from tests.fakes.aws.known import G_SPOT, P4_SPOT, G

FEW = 13
"""Questions about a region: types, zones, prices, a disk's price, quota and what is in use (2), image (2), network (2);
and one more quota."""


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAWS]:
    with FakeAWS(tmp_path / "aws") as running:
        yield running


@pytest.fixture
def account(fake: FakeAWS, tmp_path: Path) -> Account:
    return Account(fake.env, tmp_path / "home")


def ask(account: Account, **wanted: Any) -> list[Offer]:
    request = Request("aws", **{"nodes": 2, "gpus": 4, "spot": True, **wanted})
    return offers.find_offers(account, wishes(request), account.regions(request))


def refused(account: Account, **wanted: Any) -> GpuopsError:
    with pytest.raises(GpuopsError) as error:
        ask(account, **wanted)
    return error.value


def test_one_offer_is_one_type_in_one_zone(fake: FakeAWS, account: Account) -> None:
    fake.price["g5.12xlarge", "us-east-1b"] = 1.00
    first = ask(account, gpu_type="a10g")[0]
    assert first.id == "us-east-1/us-east-1b/g5.12xlarge/spot"
    assert first.say == "2 x g5.12xlarge (4 x A10G, 24 GB each) in us-east-1b, spot"
    assert (first.nodes, first.gpus, first.region) == (2, 4, "us-east-1")
    assert [(price.what, price.per_hour) for price in first.prices] == [
        ("2 x g5.12xlarge, spot", 2.0),
        ("2 x 100 GB of disk (gp3)", pytest.approx(200 * 0.08 / 730, abs=1e-6)),
        ("2 x public IPv4 address", 0.01),
    ]
    assert first.data["columns"] == {
        "TYPE": "g5.12xlarge", "GPU": "A10G", "MEMORY": "24 GB", "COUNT": "2 x 4", "VCPU": "2 x 48",
        "ZONE": "us-east-1b", "MARKET": "spot", "$/H": "$2.03",
    }  # fmt: skip
    told = {name: first.data[name] for name in ("zone", "place", "type", "market", "vcpus", "quota", "price", "disk")}
    assert told == {
        "zone": "us-east-1b", "place": "us-east-1b", "type": "g5.12xlarge", "market": "spot", "vcpus": 48,
        "quota": f"us-east-1/{G_SPOT}", "price": 1.0, "disk": 100,
    }  # fmt: skip
    assert first.data["ami"].startswith("ami-")
    assert first.data["subnet"].startswith("subnet-")


def test_a_type_without_gpus_is_offered_by_its_name(fake: FakeAWS, account: Account) -> None:
    plain = {"gpus": None, "spot": False, "options": {"instance-type": "c7i.large"}}
    fake.quota["us-east-1", STANDARD_ON_DEMAND.code] = 5.0
    first = ask(account, **plain)[0]
    assert first.say == "2 x c7i.large (2 vCPU, no GPU) in us-east-1a, on-demand"
    assert (first.gpus, first.data["quota"], first.data["vcpus"]) == (0, f"us-east-1/{STANDARD_ON_DEMAND.code}", 2)
    assert first.prices[0].per_hour == pytest.approx(2 * fake.on_demand["c7i.large", "us-east-1"])
    error = refused(account, **plain, nodes=3)
    assert isinstance(error, QuotaExceeded)
    assert error.message == (
        "AWS lets this account use 5 vCPU of Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances "
        "(L-1216C47A) in us-east-1, 0 are in use, and 3 x 2 vCPU is 6"
    )
    assert "gpuops quota aws --nodes 3 --instance-type c7i.large --on-demand" in error.hint
    spot = ask(account, **{**plain, "spot": True})[0]
    assert spot.data["quota"] == f"us-east-1/{STANDARD_SPOT.code}"


def test_the_cheapest_without_a_gpu_is_chosen_by_price(fake: FakeAWS, account: Account) -> None:
    fake.on_demand["c6a.large", "us-east-1"] = 0.01
    plain = {"gpus": None, "spot": False, "options": {"cpu": True}}
    assert ask(account, **plain)[0].data["type"] == "c6a.large"
    fake.not_offered |= {(f"us-east-1{zone}", one) for zone in "abcdef" for one in ("c7i.large", "c6a.large")}
    fake.on_demand["c6i.large", "us-east-1"] = 0.01
    assert ask(account, **plain)[0].data["type"] == "c6i.large", "what a region has not is not asked for"
    fake.quota["us-east-1", STANDARD_ON_DEMAND.code] = 0.0
    assert "gpuops quota aws --nodes 2 --cpu --on-demand" in refused(account, **plain).hint


def test_a_zone_is_looked_for_in_its_own_region(account: Account) -> None:
    wish = {"gpu_type": "a10g", "options": {"zone": "us-west-2b"}}
    found = ask(account, region="us-east-1,us-west-2", **wish)
    assert {one.data["zone"] for one in found} == {"us-west-2b"}
    error = refused(account, **wish)
    assert (error.message, error.hint) == (
        "the zone us-west-2b is not in us-east-1",
        "name its region as well: --region us-west-2",
    )
    error = refused(account, gpu_type="a10g", options={"zone": "us-east-1e"})
    assert error.message.startswith("us-east-1e has no g5.12xlarge, g5.24xlarge: us-east-1 has them in us-east-1a")


@pytest.mark.parametrize(("type", "hint"), [("c7g.large", "c7i.large"), ("m8g.xlarge", "m8i.xlarge")])
def test_one_for_arm_is_refused_with_its_sibling(account: Account, type: str, hint: str) -> None:
    error = refused(account, gpus=None, options={"instance-type": type})
    assert error.message.startswith(f"{type} has an ARM processor")
    assert error.hint.endswith(f"--instance-type {hint}")


def test_the_order_is_region_type_zone(fake: FakeAWS, account: Account) -> None:
    for kind, zone, price in (
        ("g6.12xlarge", "us-west-2a", 0.50),
        ("g6.12xlarge", "us-west-2b", 3.00),
        ("g5.12xlarge", "us-west-2a", 0.60),
        ("g5.12xlarge", "us-east-1b", 0.55),
    ):
        fake.price[kind, zone] = price
    found = ask(account, region="us-east-1,us-west-2", gpu_type="a10g,l4", nodes=1)
    places = [one.data["zone"][:-1] for one in found]
    assert places[0] == "us-west-2"
    assert places == sorted(places, key=places.index), "a region's offers stand together"
    there = [(one.data["type"], one.data["zone"]) for one in found if one.region == "us-west-2"]
    assert there[0] == ("g6.12xlarge", "us-west-2a")
    kinds = [kind for kind, _ in there]
    assert kinds == sorted(kinds, key=kinds.index), "a type's zones stand together"
    assert kinds.index("g6.12xlarge") < kinds.index("g5.12xlarge")
    prices = [one.per_hour for one in found if one.region == "us-west-2" and one.data["type"] == "g6.12xlarge"]
    assert prices == sorted(prices)


def test_on_demand_by_the_price_list(fake: FakeAWS, account: Account) -> None:
    fake.on_demand["g5.12xlarge", "us-east-1"] = 5.0
    found = ask(account, spot=False, gpu_type="g5.12xlarge", gpus=None)
    assert {one.data["market"] for one in found} == {"on-demand"}
    assert {one.prices[0].per_hour for one in found} == {10.0}
    assert found[0].data["quota"] == f"us-east-1/{G}"


def test_without_a_number_of_gpus_it_is_one(account: Account) -> None:
    assert {one.gpus for one in ask(account, gpus=None)} == {1}


def test_a_zone_without_the_type_or_a_price_is_left_out(fake: FakeAWS, account: Account) -> None:
    before = {one.data["zone"] for one in ask(account, gpu_type="g5.12xlarge", gpus=None)}
    assert {"us-east-1a", "us-east-1b"} <= before
    fake.not_offered.add(("us-east-1a", "g5.12xlarge"))
    assert {one.data["zone"] for one in ask(account, gpu_type="g5.12xlarge", gpus=None)} == before - {"us-east-1a"}


def test_a_region_has_few_questions(fake: FakeAWS, account: Account) -> None:
    ask(account, gpu_type="a10g")
    assert len(fake.requests) < FEW, [str(one) for one in fake.requests]
    before = len(fake.requests)
    ask(account, gpu_type="a10g", spot=False)
    assert len(fake.requests) - before < FEW + 2, [str(one) for one in fake.requests[before:]]
    assert all(one.status == 200 for one in fake.requests)


def test_a_disk_as_large_as_was_asked_for(account: Account) -> None:
    found = ask(account, options={"disk": 500})[0]
    assert found.data["disk"] == 500
    assert found.prices[1].what == "2 x 500 GB of disk (gp3)"


def test_no_quota_at_all(fake: FakeAWS, account: Account) -> None:
    fake.fresh_account()
    error = refused(account)
    assert isinstance(error, QuotaExceeded)
    assert error.message == (
        "AWS lets this account use 0 vCPU of All G and VT Spot Instance Requests (L-3819A6DF) in us-east-1, 0 are in "
        "use, and 2 x 48 vCPU is 96"
    )
    assert error.hint == (
        "the smallest increase that would do is to 96 vCPU in us-east-1 (2 x 48 vCPU): "
        "gpuops quota aws --gpus 4 --nodes 2 --spot --region us-east-1 --request 96; or what else runs today: "
        "gpuops quota aws --gpus 4 --nodes 2 --spot --region us-east-1"
    )


def test_an_open_request_is_known_where_quota_lacks(fake: FakeAWS, account: Account) -> None:
    fake.fresh_account()
    fake.client("service-quotas").request_service_quota_increase(ServiceCode="ec2", QuotaCode=G_SPOT, DesiredValue=96.0)
    assert refused(account).hint.startswith("AWS has yet to decide on 96 vCPU of All G and VT Spot Instance Requests")


def test_what_the_quota_allows_is_offered_and_the_rest_is_named(fake: FakeAWS, account: Account) -> None:
    fake.quota["us-east-1", G_SPOT] = 96.0
    found = ask(account, gpu_type="a10g")
    assert {one.data["type"] for one in found} == {"g5.12xlarge"}
    assert len(found[0].notes) == 1
    assert found[0].notes[0].startswith("left out: g5.24xlarge: AWS lets this account use 96 vCPU of All G and VT Spot")
    assert (
        found[0]
        .notes[0]
        .endswith("gpuops quota aws --gpus 4 --nodes 2 --gpu-type g5.24xlarge --spot --region us-east-1")
    )


def test_headroom_eaten_by_what_runs(fake: FakeAWS, account: Account) -> None:
    fake.quota["us-east-1", G_SPOT] = 96.0
    fake.client("ec2").run_instances(
        ImageId=fake.image("pytorch"),
        InstanceType="g5.xlarge",
        MinCount=1,
        MaxCount=1,
        InstanceMarketOptions={"MarketType": "spot"},
    )
    assert (
        "96 vCPU of All G and VT Spot Instance Requests (L-3819A6DF) in us-east-1, 4 are in use"
        in refused(account).message
    )


def test_the_region_that_has_quota_is_offered(fake: FakeAWS, account: Account) -> None:
    fake.fresh_account()
    fake.quota["us-west-2", G_SPOT] = 96.0
    found = ask(account, region="us-east-1,us-west-2")
    assert {one.region for one in found} == {"us-west-2"}
    assert "in us-east-1" in found[0].notes[0]


@pytest.mark.parametrize("what", ["denied", "throttle", "500"])
def test_a_quota_that_cannot_be_read_keeps_nobody_from_trying(fake: FakeAWS, account: Account, what: str) -> None:
    fake.fresh_account()
    fake.play(Fault("servicequotas:*", times=None, what=what))
    found = ask(account, gpu_type="g5.12xlarge", gpus=None)
    assert found
    assert found[0].notes[0].startswith("whether the quota allows g5.12xlarge is not known (")
    assert found[0].notes[0].endswith("): AWS may still say no")


def test_p6_on_spot_is_offered_with_a_warning(fake: FakeAWS, account: Account) -> None:
    fake.fresh_account()
    found = ask(account, gpus=8, nodes=1, gpu_type="b200")
    assert found[0].data["quota"] == ""
    assert found[0].notes == (
        "whether the quota allows p6-b200.48xlarge is not known (AWS documents none for it): AWS may still say no",
    )


def test_eight_gpus_are_counted_against_their_own_quotas(fake: FakeAWS, account: Account) -> None:
    fake.fresh_account()
    fake.quota["us-east-1", P4_SPOT] = 96.0
    found = ask(account, gpus=8, nodes=1, gpu_type="a100,a10g")
    assert {one.data["type"].partition(".")[0] for one in found} <= {"p4d", "p4de"}
    assert {one.data["quota"] for one in found} == {f"us-east-1/{P4_SPOT}"}


def test_a_type_that_no_zone_has(fake: FakeAWS, account: Account) -> None:
    for zone in "abcdef":
        fake.not_offered.add((f"us-east-1{zone}", "g5.12xlarge"))
    error = refused(account, gpu_type="g5.12xlarge", gpus=None)
    assert isinstance(error, NoCapacity | UsageError)
    assert "g5.12xlarge" in error.message


def test_no_default_network(fake: FakeAWS, account: Account) -> None:
    fake.default_vpc = False
    error = refused(account)
    assert isinstance(error, Rejected)
    assert "the account has no default network (VPC) in us-east-1" in error.message


def test_credentials_that_have_expired(fake: FakeAWS, account: Account) -> None:
    fake.expired = True
    assert isinstance(refused(account), AuthFailed)


def test_a_permission_that_is_not_there(fake: FakeAWS, account: Account) -> None:
    fake.deny("ec2:DescribeInstanceTypes")
    error = refused(account)
    assert isinstance(error, AuthFailed)
    assert "ec2:DescribeInstanceTypes" in error.message


def test_a_region_without_an_answer_is_a_note_and_not_the_end(fake: FakeAWS, account: Account) -> None:
    fake.play(Fault("DescribeInstanceTypes", times=None, what="denied", region="us-west-2"))
    found = ask(account, region="us-east-1,us-west-2")
    assert {one.region for one in found} == {"us-east-1"}
    assert found[0].notes[-1].startswith("us-west-2: ")


def test_a_v100_needs_an_image_of_ones_own(account: Account) -> None:
    error = refused(account, gpus=8, nodes=1, gpu_type="v100")
    assert isinstance(error, UsageError)
    assert error.message == "AWS's image has no driver for the V100 of p3dn.24xlarge"


def test_the_price_is_the_cores_to_judge(account: Account) -> None:
    assert ask(account, max_price=0.01), "gpuops names the cheapest that there is"


def test_max_price_is_what_a_spot_machine_may_come_to(fake: FakeAWS, account: Account) -> None:
    """With its disk and address, and those of the other one."""
    fake.price["g5.12xlarge", "us-east-1b"] = 1.00
    first = ask(account, gpu_type="a10g", max_price=3.0)[0]
    besides = sum(price.per_hour for price in first.prices[1:])
    assert first.data["spot_most"] == pytest.approx((3.0 - besides) / 2, abs=2e-4)
    assert 2 * first.data["spot_most"] + besides <= 3.0
    for wish in ({}, {"max_price": 1.5}, {"max_price": 30.0, "spot": False}):
        assert ask(account, gpu_type="a10g", **wish)[0].data["spot_most"] is None


def test_without_the_price_list_the_highest_price_that_is_allowed_counts(fake: FakeAWS, account: Account) -> None:
    fake.deny("pricing:*")
    wish = {"spot": False, "gpu_type": "g5.12xlarge,g4dn.12xlarge", "gpus": None}
    fake.price["g5.12xlarge", "us-east-1a"] = 4.6
    first, *others = ask(account, **wish, max_price=9.0)
    assert {one.data["type"] for one in (first, *others)} == {"g4dn.12xlarge"}, "spot of the other one is dearer"
    assert 8.99 < first.per_hour <= 9.0
    assert first.prices[0].what == "2 x g4dn.12xlarge, on-demand, at most"
    assert "the price of g4dn.12xlarge is not known, and counted as --max-price allows" in " ".join(first.notes)
    no = refused(account, **wish)
    assert type(no) is AuthFailed
    assert "cannot read AWS's price list" in no.message
    assert no.hint.endswith(capacity.UNPRICED_HINT)
