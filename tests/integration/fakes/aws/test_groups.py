"""Security groups that something still needs."""

from __future__ import annotations

from tests.conftest import until
from tests.fakes.aws import FakeAWS
from tests.integration.fakes.aws.renter import Renter, refused


def test_a_group_in_use_stays(renter: Renter):
    group = renter.group()
    ids = renter.ids(group=group)
    assert refused(renter.ec2.delete_security_group, GroupId=group) == ("DependencyViolation", 400)
    renter.ec2.terminate_instances(InstanceIds=ids)
    until(lambda: renter.states(*ids) == {"terminated"}, "they end")
    renter.ec2.delete_security_group(GroupId=group)
    assert refused(renter.ec2.delete_security_group, GroupId=group)[0] == "InvalidGroup.NotFound"


def test_a_group_that_another_speaks_of_stays(renter: Renter):
    one, other = renter.group("one"), renter.group("other")
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": one}]}
    renter.ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=[rule])
    assert refused(renter.ec2.delete_security_group, GroupId=one)[0] == "DependencyViolation"
    own = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": other}]}
    renter.ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=[own])
    renter.ec2.delete_security_group(GroupId=other)  # its own rule about itself is no hindrance
    renter.ec2.delete_security_group(GroupId=one)


def test_a_machine_that_shuts_down_for_minutes_keeps_its_group(fake: FakeAWS, renter: Renter):
    fake.ending_s = 360.0
    group = renter.group()
    ids = renter.ids(group=group)
    renter.ec2.terminate_instances(InstanceIds=ids)
    fake.advance(350)
    assert renter.states(*ids) == {"shutting-down"}
    assert refused(renter.ec2.delete_security_group, GroupId=group)[0] == "DependencyViolation"
    fake.advance(11)
    renter.ec2.delete_security_group(GroupId=group)
