"""Which quota a machine is counted against, what is in use, what a request needs; and as the service answers it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.core.errors import AuthFailed
from gpuops.core.models import Request
from gpuops.core.quota import QuotaReport
from provisioners.aws import ec2, quota_advice, quota_report, quotas
from provisioners.aws.account import Account
from provisioners.aws.quotas import (
    GPU_CLASSES,
    ON_DEMAND,
    SPOT,
    STANDARD_ON_DEMAND,
    STANDARD_SPOT,
    AccountQuotas,
    build_quota,
    quota_class_of,
)
from tests.fakes.aws import FakeAWS, Fault
from tests.fakes.aws.known import G_SPOT, P4_SPOT, P5_SPOT, G, P, kinds


@pytest.mark.parametrize(
    ("kind", "spot", "on_demand"),
    [
        ("g4dn.xlarge", G_SPOT, G),
        ("gr6.4xlarge", G_SPOT, G),
        ("g7e.24xlarge", G_SPOT, G),
        ("g5g.xlarge", G_SPOT, G),
        ("vt1.3xlarge", G_SPOT, G),
        ("p2.xlarge", P4_SPOT, P),
        ("p3dn.24xlarge", P4_SPOT, P),
        ("p4de.24xlarge", P4_SPOT, P),
        ("p5.48xlarge", P5_SPOT, P),
        ("p5en.48xlarge", P5_SPOT, P),
        ("p6-b200.48xlarge", "", P),
        ("p7.48xlarge", "", P),
    ],
)
def test_the_letters_of_a_family_tell_its_quota(kind: str, spot: str, on_demand: str) -> None:
    counted = [quota_class_of(kind, market) for market in (SPOT, ON_DEMAND)]
    assert [one.code if one else None for one in counted] == [spot, on_demand]


@pytest.mark.parametrize("kind", ["m7i.large", "c5.xlarge", "t3.small", "i4i.large", "is4gen.large", "r5b.large"])
def test_those_without_gpus_are_counted_as_standard(kind: str) -> None:
    assert [quota_class_of(kind, market) for market in (SPOT, ON_DEMAND)] == [STANDARD_SPOT, STANDARD_ON_DEMAND]


@pytest.mark.parametrize("kind", ["trn1.2xlarge", "inf2.xlarge", "x2idn.16xlarge", "dl1.24xlarge", "hpc7a.12xlarge"])
def test_others_are_counted_elsewhere(kind: str) -> None:
    assert [quota_class_of(kind, market).code for market in (SPOT, ON_DEMAND)] == ["", ""]


def running(kind: str, state: str = "running", **more: object) -> dict[str, object]:
    return {"InstanceType": kind, "State": {"Name": state}, **more}


def in_use(
    instances: list[dict[str, object]], requests: list[dict[str, object]], vcpus: dict[str, int]
) -> dict[str, float | None]:
    return quotas.count_usage(map(ec2.parse_instance, instances), map(ec2.parse_spot_request, requests), vcpus)


VCPUS = {kind.type: kind.vcpus for kind in kinds()}


def test_what_is_in_use() -> None:
    used = in_use(
        [
            running("g5.12xlarge", InstanceLifecycle="spot"),
            running("g4dn.xlarge", "pending", InstanceLifecycle="spot"),
            running("g6.xlarge"),
            running("g6.xlarge", "stopped"),
            running("g6.48xlarge", "shutting-down"),
            running("p5.48xlarge", InstanceLifecycle="capacity-block"),
            running("p4d.24xlarge"),
            running("m7i.48xlarge", InstanceLifecycle="spot"),
        ],
        [
            {"State": "open", "LaunchSpecification": {"InstanceType": "g6.4xlarge"}},
            {"State": "active", "LaunchSpecification": {"InstanceType": "g6.48xlarge"}},
        ],
        VCPUS,
    )
    unknown = {STANDARD_SPOT.code: None, STANDARD_ON_DEMAND.code: 0}  # how many vCPUs that m7i has was not asked
    assert used == {G_SPOT: 48 + 4 + 16, P4_SPOT: 0, P5_SPOT: 0, G: 4, P: 96, **unknown}


def test_an_instances_own_cores_come_first() -> None:
    half = running("g5.12xlarge", CpuOptions={"CoreCount": 12, "ThreadsPerCore": 2})
    assert in_use([half], [], VCPUS)[G] == 24


def test_a_spot_request_that_is_not_closed_counts_once() -> None:
    """With its machine while that runs, and by itself until AWS has seen its end."""
    alive = running("g5.12xlarge", InstanceLifecycle="spot", InstanceId="i-1")
    request = {"State": "active", "InstanceId": "i-1", "LaunchSpecification": {"InstanceType": "g5.12xlarge"}}
    assert in_use([alive], [request], VCPUS)[G_SPOT] == 48
    ending = {**alive, "State": {"Name": "shutting-down"}}
    assert in_use([ending], [request], VCPUS)[G_SPOT] == 48
    assert in_use([], [request], VCPUS)[G_SPOT] == 48
    assert in_use([], [{**request, "State": "closed"}], VCPUS)[G_SPOT] == 0


def test_a_type_that_nobody_knows_makes_it_unknown_and_not_zero() -> None:
    used = in_use([running("g99.xlarge"), running("g5.xlarge")], [], VCPUS)
    assert used[G] is None
    assert used[P] == 0


def test_need_and_what_is_missing() -> None:
    counted = quotas.G_SPOT
    standing = AccountQuotas({counted.code: 64.0}, {counted.code: 16.0})
    four = [kind for kind in kinds() if kind.gpus == 4]
    found = build_quota("us-east-1", counted, standing, four, 2, asked=True)
    assert (found.need, found.sum, found.free, found.missing) == (96, "2 x 48 vCPU", 48, 48)
    assert build_quota("us-east-1", quotas.P5_SPOT, standing, four, 2, asked=False).need is None


def test_what_is_not_known_is_no_number() -> None:
    counted = quotas.G_SPOT
    eight = [kind for kind in kinds() if kind.gpus == 8]
    for standing in (AccountQuotas({}, {counted.code: 0.0}), AccountQuotas({counted.code: 96.0}, {counted.code: None})):
        found = build_quota("us-east-1", counted, standing, eight, 1, asked=True)
        assert (found.free, found.missing) == (None, None)
    newer = build_quota("us-east-1", quotas.NEWER_P_SPOT, AccountQuotas(), eight, 1, asked=True)
    assert (newer.code, newer.limit, newer.missing) == ("", None, None)
    assert newer.why == "AWS documents no quota for it"


# As the service answers.


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAWS]:
    with FakeAWS(tmp_path / "aws") as running:
        yield running


@pytest.fixture
def account(fake: FakeAWS, tmp_path: Path) -> Account:
    return Account(fake.env, tmp_path / "home")


def launch(fake: FakeAWS, kind: str, count: int, *, spot: bool) -> None:
    market = {"InstanceMarketOptions": {"MarketType": "spot"}} if spot else {}
    fake.client("ec2").run_instances(
        ImageId=fake.image("pytorch"), InstanceType=kind, MinCount=count, MaxCount=count, **market
    )


def by_code(report: QuotaReport) -> dict[str, tuple[float | None, float | None]]:
    return {quota.code: (quota.limit, quota.used) for quota in report.quotas}


def test_a_report_of_what_runs(fake: FakeAWS, account: Account) -> None:
    fake.quota["us-east-1", G_SPOT] = 96.0
    fake.quota["us-east-1", G] = 32.0
    launch(fake, "g5.12xlarge", 1, spot=True)
    launch(fake, "g4dn.xlarge", 2, spot=False)
    report = quota_report.build_report(account, Request("aws"))
    assert by_code(report)[G_SPOT] == (96, 48)
    assert by_code(report)[G] == (32, 8)
    assert list(by_code(report)) == [one.code for one in GPU_CLASSES]
    assert report.advice[1].startswith("as spot one GPU fits in us-east-1: 1 x 4 vCPU is 4, and 48 are free")
    assert report.notes == []
    assert not any(quota.asked for quota in report.quotas)


def test_machines_without_gpus_have_a_quota_as_well(fake: FakeAWS, account: Account) -> None:
    fake.fresh_account()
    asked = Request("aws", nodes=2, options={"instance-type": "c7i.large"})
    report = quota_report.build_report(account, asked)
    (ours,) = (quota for quota in report.quotas if quota.asked)
    assert (ours.code, ours.limit, ours.need, ours.sum) == (STANDARD_ON_DEMAND.code, 5, 4, "2 x 2 vCPU")
    assert report.advice[0].startswith("it fits in us-east-1: 2 x 2 vCPU is 4, and 5 are free")
    assert report.advice[0].endswith("gpuops up aws --nodes 2 --instance-type c7i.large --region us-east-1")
    launch(fake, "c7i.large", 2, spot=False)
    less = quota_report.build_report(account, dataclasses.replace(asked, nodes=3, spot=True)).advice
    assert less[0].startswith(
        "with fewer machines something runs today in us-east-1, where 5 vCPU are free: 2 x c7i.large"
    )
    assert "gpuops up aws --nodes 2 --instance-type c7i.large --spot" in less[0]
    none = quota_report.build_report(account, asked).advice
    assert none[0].startswith("as spot it fits today in us-east-1: 4 vCPU are needed, and 5 are free of All Standard")
    assert none[1].startswith("no such machine runs on demand today in us-east-1")


def test_a_quota_that_was_never_changed_is_its_default(fake: FakeAWS, account: Account) -> None:
    fake.quota["us-east-1", G] = None
    assert quotas.read_limit(account, "us-east-1", G) == 0
    assert [one.action for one in fake.requests] == ["GetServiceQuota", "GetAWSDefaultServiceQuota"]


def test_a_report_takes_few_questions(fake: FakeAWS, account: Account) -> None:
    quota_report.build_report(account, Request("aws", nodes=2, gpus=4, spot=True))
    assert len(fake.requests) <= 10, [str(one) for one in fake.requests]


@pytest.mark.parametrize("denied", ["servicequotas:*", "ec2:Describe*"])
def test_without_permission_it_is_unknown_and_never_no(fake: FakeAWS, account: Account, denied: str) -> None:
    fake.fresh_account()
    fake.deny(denied)
    report = quota_report.build_report(account, Request("aws", nodes=2, gpus=4, spot=True))
    ours = [quota for quota in report.quotas if quota.asked]
    assert ours
    assert all(quota.missing is None for quota in ours)
    assert any(denied.partition("*")[0] in note for note in report.notes)
    assert not any("--request" in said for said in report.advice)


@pytest.mark.parametrize("what", ["throttle", "500", "cut"])
def test_a_quota_that_is_not_answered_is_unknown(fake: FakeAWS, account: Account, what: str) -> None:
    fake.play(Fault("GetServiceQuota", times=None, what=what))
    report = quota_report.build_report(account, Request("aws", nodes=2, gpus=4, spot=True))
    assert {quota.limit for quota in report.quotas} == {None}
    assert all(quota.used == 0 for quota in report.quotas)


def test_wrong_credentials_are_an_error_and_nothing_unknown(fake: FakeAWS, account: Account) -> None:
    fake.expired = True
    with pytest.raises(AuthFailed):
        quota_report.build_report(account, Request("aws", nodes=2, gpus=4, spot=True))


def test_every_region_that_is_switched_on(fake: FakeAWS, account: Account) -> None:
    fake.fresh_account()
    fake.quota["eu-west-1", G_SPOT] = 192.0
    report = quota_report.build_report(account, Request("aws", nodes=2, gpus=4, spot=True, region="all"))
    regions = {quota.region for quota in report.quotas}
    assert {"us-east-1", "eu-west-1", "us-west-2"} < regions
    assert "me-south-1" not in regions
    assert len(report.advice) == 1
    assert report.advice[0].startswith("it fits in eu-west-1: 2 x 48 vCPU is 96, and 192 are free")


def test_of_regions_that_are_alike_the_usual_one_is_advised(fake: FakeAWS, tmp_path: Path) -> None:
    fake.fresh_account()
    account = Account({**fake.env, "AWS_REGION": "us-west-2"}, tmp_path)
    report = quota_report.build_report(account, Request("aws", gpus=4, spot=True, region="all"))
    assert report.quotas[0].region == "us-west-2"
    (line,) = [one for one in report.advice if one.startswith("the smallest increase that would do")]
    assert " --region us-west-2 " in line


def test_a_region_that_does_not_answer_keeps_the_others(fake: FakeAWS, account: Account) -> None:
    fake.deny("ec2:DescribeInstanceTypes")
    report = quota_report.build_report(account, Request("aws", region="us-east-1,us-west-2"))
    assert {quota.region for quota in report.quotas} == {"us-east-1", "us-west-2"}
    assert report.notes[0].startswith("us-east-1, us-west-2 are known in part: ")


def test_asking_for_more_and_asking_twice(fake: FakeAWS, account: Account) -> None:
    fake.fresh_account()
    quota = quota_report.build_report(account, Request("aws", nodes=2, gpus=4, spot=True)).quotas[0]
    first = quota_report.request_quota(account, quota, 96)
    assert (first.status, first.wanted, first.open, first.granted) == ("PENDING", 96, True, None)
    assert first.created is not None
    again = quota_report.request_quota(account, quota, 128)
    assert (again.id, again.wanted) == (first.id, 96)
    seen = quota_report.build_report(account, Request("aws", nodes=2, gpus=4, spot=True)).quotas[0]
    assert [one.id for one in seen.increases or ()] == [first.id]


@pytest.mark.parametrize(
    ("status", "value", "granted"),
    [
        ("APPROVED", None, True),
        ("DENIED", None, False),
        ("NOT_APPROVED", None, False),
        ("CASE_CLOSED", 96.0, True),
        ("CASE_CLOSED", 32.0, False),
    ],
)
def test_how_a_request_ended(fake: FakeAWS, account: Account, status: str, value: float | None, granted: bool) -> None:
    fake.fresh_account()
    quota = quota_report.build_report(account, Request("aws", nodes=2, gpus=4, spot=True)).quotas[0]
    filed = quota_report.request_quota(account, quota, 96)
    fake.decide(filed.id, "CASE_OPENED")
    assert quota_report.requested_quota(account, quota, filed.id).open
    fake.decide(filed.id, status, value)
    soon = quota_report.requested_quota(account, quota, filed.id)
    assert soon.open == (status == "CASE_CLOSED" and not granted), "a grant may take an hour"
    fake.quota_requests[filed.id].created = fake.quota_requests[filed.id].updated = (
        time.time() - quota_advice.GRANT_DELAY_S
    )
    found = quota_report.requested_quota(account, quota, filed.id)
    assert (found.status, found.open, found.granted) == (status, False, granted)
    assert bool(found.advice) == (not granted)
    assert quotas.case_link(found) in (found.advice or [quotas.case_link(found)])[0]


def test_another_profiles_account_is_the_one_that_is_asked(fake: FakeAWS, tmp_path: Path) -> None:
    account = Account(fake.env, tmp_path / "home")
    report = quota_report.build_report(account, Request("aws", gpus=4, spot=True, options={"profile": "work"}))
    assert report.quotas
    assert all(quota.region.endswith("@work") for quota in report.quotas)
    assert "--profile work" in report.advice[0]
