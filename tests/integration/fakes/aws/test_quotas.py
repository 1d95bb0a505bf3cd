"""Quotas: what draws on them, and how more is asked for and decided."""

from __future__ import annotations

from datetime import datetime

from tests.conftest import until
from tests.fakes.aws import FakeAWS
from tests.integration.fakes.aws.renter import G4, G_ON_DEMAND, G_SPOT, P5, P5_SPOT, P6, Renter, quota, refused, words


def test_a_fresh_account_has_nothing_for_gpus(fake: FakeAWS, renter: Renter):
    assert quota(fake, G_SPOT) > 1000
    fake.fresh_account()
    assert [quota(fake, code) for code in (G_SPOT, G_ON_DEMAND, "L-1216C47A")] == [0.0, 0.0, 5.0]
    assert refused(renter.launch) == ("MaxSpotInstanceCountExceeded", 400)
    assert refused(renter.launch, spot=False) == ("VcpuLimitExceeded", 400)
    assert "current vCPU limit of 0 allows" in words(renter.launch, spot=False)
    client = fake.client("service-quotas")
    assert client.get_aws_default_service_quota(ServiceCode="ec2", QuotaCode=G_SPOT)["Quota"]["Value"] == 0.0
    names = {one["QuotaCode"]: one["QuotaName"] for one in client.list_service_quotas(ServiceCode="ec2")["Quotas"]}
    assert names[G_SPOT] == "All G and VT Spot Instance Requests"


def test_quota_is_drawn_by_market_family_and_region(fake: FakeAWS, renter: Renter):
    fake.quota["us-east-1", G_SPOT] = 96.0
    fake.quota["us-east-1", G_ON_DEMAND] = 48.0
    fake.quota["us-east-1", P5_SPOT] = 0.0
    ids = renter.ids(count=2)
    assert refused(renter.launch, count=1)[0] == "MaxSpotInstanceCountExceeded"
    assert refused(renter.launch, count=1, InstanceType=G4)[0] == "MaxSpotInstanceCountExceeded"
    assert renter.ids(count=1, spot=False)
    assert refused(renter.launch, count=1, spot=False)[0] == "VcpuLimitExceeded"
    assert refused(renter.launch, count=1, InstanceType=P5)[0] == "MaxSpotInstanceCountExceeded"
    assert Renter(fake, "us-west-2").ids(count=2)
    renter.ec2.terminate_instances(InstanceIds=ids)
    until(lambda: renter.states(*ids) == {"terminated"}, "they end")
    assert renter.ids(count=2)


def test_p6_on_spot_has_no_quota_that_is_documented(fake: FakeAWS, renter: Renter):
    fake.fresh_account()
    assert {zone for zone, kind in fake.world.offered("us-east-1") if kind == P6}
    zone = next(zone for zone, kind in sorted(fake.world.offered("us-east-1")) if kind == P6)
    assert renter.ids(zone[-1], 1, InstanceType=P6)
    assert refused(renter.launch, zone[-1], 1, spot=False, InstanceType=P6)[0] == "VcpuLimitExceeded"


def test_a_request_that_lingers_draws_on(fake: FakeAWS, renter: Renter):
    fake.quota["us-east-1", G_SPOT] = 96.0
    fake.close_s = 60.0
    ids = renter.ids(count=2)
    renter.ec2.terminate_instances(InstanceIds=ids)
    until(lambda: renter.states(*ids) == {"terminated"}, "they end")
    assert refused(renter.launch, count=1)[0] == "MaxSpotInstanceCountExceeded"
    requests = [one["SpotInstanceRequestId"] for one in renter.told(*ids)]
    renter.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=requests)
    assert renter.ids(count=1)


def test_more_quota_is_asked_for_once_and_decided_later(fake: FakeAWS, renter: Renter):
    fake.fresh_account()
    client = fake.client("service-quotas")
    asked = {"ServiceCode": "ec2", "QuotaCode": G_SPOT, "DesiredValue": 96.0}
    made = client.request_service_quota_increase(**asked)["RequestedQuota"]
    assert (made["Status"], made["DesiredValue"]) == ("PENDING", 96.0)
    assert isinstance(made["Created"], datetime)
    assert refused(client.request_service_quota_increase, **asked)[0] == "ResourceAlreadyExistsException"
    history = client.list_requested_service_quota_change_history_by_quota
    assert [one["Id"] for one in history(ServiceCode="ec2", QuotaCode=G_SPOT)["RequestedQuotas"]] == [made["Id"]]
    assert history(ServiceCode="ec2", QuotaCode=G_ON_DEMAND)["RequestedQuotas"] == []
    fake.decide(made["Id"], "CASE_OPENED")
    opened = client.get_requested_service_quota_change(RequestId=made["Id"])["RequestedQuota"]
    assert opened["Status"] == "CASE_OPENED"
    assert opened["CaseId"]
    assert quota(fake, G_SPOT) == 0.0
    fake.decide(made["Id"], "APPROVED")
    assert quota(fake, G_SPOT) == 96.0
    assert quota(fake, G_SPOT, "eu-west-1") == 0.0
    assert renter.ids()
    assert refused(client.request_service_quota_increase, **asked)[0] == "IllegalArgumentException"


def test_a_request_that_is_turned_down_or_granted_in_part(fake: FakeAWS):
    fake.fresh_account()
    client = fake.client("service-quotas")
    for status, value, now in (("DENIED", None, 0.0), ("CASE_CLOSED", 32.0, 32.0)):
        made = client.request_service_quota_increase(ServiceCode="ec2", QuotaCode=G_SPOT, DesiredValue=96.0)
        fake.decide(made["RequestedQuota"]["Id"], status, value)
        assert quota(fake, G_SPOT) == now
    fake.advance(91 * 86400)
    assert client.list_requested_service_quota_change_history(ServiceCode="ec2")["RequestedQuotas"] == []


def test_quotas_that_are_not_there(fake: FakeAWS):
    fake.quota["us-east-1", G_SPOT] = None
    assert refused(quota, fake, G_SPOT)[0] == "NoSuchResourceException"
    assert refused(quota, fake, "L-DEADBEEF")[0] == "NoSuchResourceException"
    client = fake.client("service-quotas")
    assert client.get_aws_default_service_quota(ServiceCode="ec2", QuotaCode=G_SPOT)["Quota"]["Value"] == 0.0
