"""Machines from launch to end, as they are told, found and taken along with what belongs to them."""

from __future__ import annotations

from tests.conftest import until
from tests.fakes.aws import FakeAWS
from tests.integration.fakes.aws.renter import MINE, Renter, refused


def test_machines_of_one_launch_are_in_one_zone_numbered_and_tagged_with_all_that_comes_with_them(renter: Renter):
    made = renter.launch("b", group=renter.group())
    assert {one["State"]["Name"] for one in made} == {"pending"}
    assert not any("PublicIpAddress" in one or "StateReason" in one for one in made)
    ids = [one["InstanceId"] for one in made]
    until(lambda: renter.states(*ids) == {"running"}, "they run")
    found = renter.told(*ids)
    assert sorted(one["AmiLaunchIndex"] for one in found) == [0, 1]
    assert {one["Placement"]["AvailabilityZone"] for one in found} == {"us-east-1b"}
    assert all(one["PublicIpAddress"] and one["PrivateIpAddress"] and one["Tags"] for one in found)
    assert {one["InstanceLifecycle"] for one in found} == {"spot"}
    for describe, key in (
        (renter.ec2.describe_volumes, "Volumes"),
        (renter.ec2.describe_network_interfaces, "NetworkInterfaces"),
        (renter.ec2.describe_spot_instance_requests, "SpotInstanceRequests"),
    ):
        assert len(describe(Filters=MINE)[key]) == 2
    assert {one["Size"] for one in renter.ec2.describe_volumes(Filters=MINE)["Volumes"]} == {100}


def test_a_terminated_machine_takes_its_disk_and_card_along_and_can_be_terminated_again(renter: Renter):
    ids = renter.ids()
    said = renter.ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"]
    assert {one["CurrentState"]["Name"] for one in said} == {"shutting-down"}
    until(lambda: renter.states(*ids) == {"terminated"}, "they end")
    again = renter.ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"]
    assert {one["PreviousState"]["Name"] for one in again} == {"terminated"}
    (reason,) = {one["StateReason"]["Code"] for one in renter.told(*ids)}
    assert reason == "Client.UserInitiatedShutdown"
    assert renter.fake.left() == []
    assert not any("PublicIpAddress" in one for one in renter.told(*ids))
    renter.fake.advance(3601)
    assert renter.told() == []
    assert refused(renter.told, *ids)[0] == "InvalidInstanceID.NotFound"


def test_one_wrong_id_ends_none(renter: Renter):
    ids = renter.ids()
    assert refused(renter.ec2.terminate_instances, InstanceIds=[*ids, "i-0123456789abcdef0"]) == (
        "InvalidInstanceID.NotFound",
        400,
    )
    assert renter.states(*ids) <= {"pending", "running"}
    assert refused(renter.ec2.terminate_instances, InstanceIds=["node0"])[0] == "InvalidInstanceID.Malformed"


def test_a_power_off_from_inside_ends_a_machine_that_was_launched_so_and_stops_another(fake: FakeAWS, renter: Renter):
    (ends,) = renter.ids(count=1)
    (stops,) = renter.ids(count=1, spot=False, InstanceInitiatedShutdownBehavior="stop")
    fake.power_off(ends)
    fake.power_off(stops)
    until(lambda: (renter.states(ends), renter.states(stops)) == ({"terminated"}, {"stopped"}), "both are off")
    assert renter.told(ends)[0]["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert [one.id for one in fake.instances()] == [stops]


def test_what_is_new_is_seen_late(fake: FakeAWS, renter: Renter):
    fake.lag_s = 30.0
    group = renter.group()
    assert refused(renter.ec2.describe_security_groups, GroupIds=[group])[0] == "InvalidGroup.NotFound"
    assert renter.ec2.describe_security_groups(Filters=MINE)["SecurityGroups"] == []
    assert refused(renter.launch, group=group)[0] == "InvalidGroup.NotFound"
    assert refused(renter.group)[0] == "InvalidGroup.Duplicate"
    fake.advance(31)
    ids = renter.ids(group=group)
    assert renter.told() == []
    assert refused(renter.told, *ids)[0] == "InvalidInstanceID.NotFound"
    assert refused(renter.ec2.terminate_instances, InstanceIds=ids)[0] == "InvalidInstanceID.NotFound"
    assert len(fake.left()) == 5, fake.left()  # it is all there, and known to the fake
    fake.advance(31)
    assert [one["InstanceId"] for one in renter.told(*ids)] == ids


def test_filters_know_wildcards_tags_and_life_cycles(renter: Renter):
    renter.launch("a", 1)
    renter.launch("b", 1, spot=False, ClientToken="mine")

    def some(name: str, *values: str) -> int:
        return len(renter.told(Filters=[{"Name": name, "Values": list(values)}]))

    assert some("instance-lifecycle", "spot") == 1
    assert some("client-token", "mine") == 1
    assert some("tag:gpuops:cluster", "c*") == 2
    assert some("tag-key", "gpuops:managed") == 2
    assert some("instance-type", "g5.*") == 2
    assert some("availability-zone", "us-east-1b", "us-east-1c") == 1
    assert some("tag:gpuops:cluster", "c2") == 0
    assert refused(some, "colour", "red")[0] == "InvalidParameterValue"


def test_what_a_machine_printed(fake: FakeAWS, renter: Renter):
    (one,) = renter.ids(count=1)
    assert renter.ec2.get_console_output(InstanceId=one, Latest=True).get("Output", "") == ""
    fake.console[one] = "-----BEGIN SSH HOST KEY KEYS-----\n"
    assert renter.ec2.get_console_output(InstanceId=one, Latest=True)["Output"] == fake.console[one]
