"""Subnets by zone, and a security group that lets this computer in and nobody else."""

from __future__ import annotations

import dataclasses
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from gpuops.core.errors import AuthFailed, ProviderError, Rejected, UsageError
from provisioners.aws import ec2, network
from provisioners.aws.options import Wishes, wishes
from tests.conftest import until
from tests.fakes.aws import FakeAWS, Fault
from tests.fakes.provider import FakeClock
from tests.integration.provisioners.aws.conftest import Notes, Tenant

HERE = "203.0.113.7/32"


def wish(tenant: Tenant, **options: Any) -> Wishes:
    return wishes(dataclasses.replace(tenant.request, options=options))


def subnets(fake: FakeAWS) -> list[dict[str, Any]]:
    return list(fake.client("ec2").describe_subnets()["Subnets"])


def test_every_zone_has_a_subnet_of_the_default_network(fake: FakeAWS, tenant: Tenant) -> None:
    found = network.find_subnets(tenant.provider._account, "us-east-1", wish(tenant))
    assert set(found) == {f"us-east-1{letter}" for letter in "abcdef"}
    known = {one["SubnetId"]: one for one in subnets(fake)}
    for zone, place in found.items():
        assert known[place.subnet]["AvailabilityZone"] == zone
        assert (place.vpc, place.public) == (known[place.subnet]["VpcId"], True)


def test_without_a_default_network_there_is_a_remedy(fake: FakeAWS, tenant: Tenant) -> None:
    fake.default_vpc = False
    with pytest.raises(Rejected) as caught:
        network.find_subnets(tenant.provider._account, "us-east-1", wish(tenant))
    assert caught.value.message == "the account has no default network (VPC) in us-east-1"
    assert caught.value.hint == (
        "make one: aws ec2 create-default-vpc --region us-east-1; or name a subnet of your own: --subnet subnet-…"
    )


def own_subnet(fake: FakeAWS, *, public: bool) -> tuple[str, str]:
    vpc = fake.client("ec2").create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    return vpc, further_subnet(fake, vpc, 1, "us-east-1c", public=public)


def further_subnet(fake: FakeAWS, vpc: str, number: int, zone: str, *, public: bool) -> str:
    client = fake.client("ec2")
    made = client.create_subnet(VpcId=vpc, CidrBlock=f"10.9.{number}.0/24", AvailabilityZone=zone)
    subnet = str(made["Subnet"]["SubnetId"])
    client.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": public})
    return subnet


def test_a_subnet_of_ones_own_is_the_only_place(fake: FakeAWS, tenant: Tenant) -> None:
    vpc, subnet = own_subnet(fake, public=True)
    found = network.find_subnets(tenant.provider._account, "us-east-1", wish(tenant, subnet=subnet))
    assert found == {"us-east-1c": network.Subnet(subnet, vpc, True)}


def test_a_subnet_without_public_addresses_asks_from_where_it_is_reached(fake: FakeAWS, tenant: Tenant) -> None:
    _, subnet = own_subnet(fake, public=False)
    account = tenant.provider._account
    with pytest.raises(UsageError) as caught:
        network.find_subnets(account, "us-east-1", wish(tenant, subnet=subnet))
    assert caught.value.message == f"the subnet {subnet} gives its machines no public address"
    found = network.find_subnets(account, "us-east-1", wish(tenant, subnet=subnet, **{"ssh-from": "10.0.0.0/8"}))
    assert not found["us-east-1c"].public
    assert "--public-ip" in caught.value.hint
    found = network.find_subnets(account, "us-east-1", wish(tenant, subnet=subnet, **{"public-ip": True}))
    assert found["us-east-1c"].public


def test_a_machine_gets_the_public_address_that_its_subnet_has_not(fake: FakeAWS, tenant: Tenant) -> None:
    _, subnet = own_subnet(fake, public=False)
    machine = next(
        one for one in tenant.make(offer=tenant.offer(zone="c", subnet=subnet, **{"public-ip": True})) if one.bills
    )
    (nic,) = next(one for one in fake.requests if one.action == "RunInstances").parameters["NetworkInterfaces"]
    assert (nic["SubnetId"], nic["AssociatePublicIpAddress"]) == (subnet, True)
    assert len(nic["Groups"]) == 1, "AWS refuses a group of the instance beside an interface of its own"
    until(lambda: tenant.provider.describe(machine).address, "a public address")


def test_several_subnets_are_one_place_for_each_zone(fake: FakeAWS, tenant: Tenant) -> None:
    vpc, first = own_subnet(fake, public=True)
    second = further_subnet(fake, vpc, 2, "us-east-1d", public=True)
    again = further_subnet(fake, vpc, 3, "us-east-1d", public=True)
    account = tenant.provider._account
    found = network.find_subnets(account, "us-east-1", wish(tenant, subnet=f"{first},{second}"))
    assert {zone: place.subnet for zone, place in found.items()} == {"us-east-1c": first, "us-east-1d": second}
    with pytest.raises(UsageError, match="are both in us-east-1d") as caught:
        network.find_subnets(account, "us-east-1", wish(tenant, subnet=f"{first},{second},{again}"))
    assert caught.value.hint == "name one for each zone"
    inner = further_subnet(fake, vpc, 4, "us-east-1e", public=False)
    with pytest.raises(UsageError, match=f"the subnet {inner} gives its machines no public address"):
        network.find_subnets(account, "us-east-1", wish(tenant, subnet=f"{first},{inner}"))


def test_one_zone_is_one_place(fake: FakeAWS, tenant: Tenant) -> None:
    account = tenant.provider._account
    assert list(network.find_subnets(account, "us-east-1", wish(tenant, zone="us-east-1d"))) == ["us-east-1d"]
    with pytest.raises(UsageError, match="there is no subnet of ours in the zone us-east-1z: in us-east-1 they are in"):
        network.find_subnets(account, "us-east-1", wish(tenant, zone="us-east-1z"))
    _, subnet = own_subnet(fake, public=True)
    with pytest.raises(UsageError, match="in the zone us-east-1d: in us-east-1 they are in us-east-1c"):
        network.find_subnets(account, "us-east-1", wish(tenant, zone="us-east-1d", subnet=subnet))


def test_a_subnet_that_is_not_there(tenant: Tenant) -> None:
    with pytest.raises(Rejected, match="the subnet is not there"):
        network.find_subnets(tenant.provider._account, "us-east-1", wish(tenant, subnet="subnet-01234567"))


def test_a_security_group_of_another_network(fake: FakeAWS, tenant: Tenant) -> None:
    vpc, _ = own_subnet(fake, public=True)
    group = fake.client("ec2").create_security_group(GroupName="mine", Description="x", VpcId=vpc)["GroupId"]
    with pytest.raises(UsageError) as caught:
        network.find_subnets(tenant.provider._account, "us-east-1", wish(tenant, **{"security-group": group}))
    assert caught.value.message.startswith(
        f"the security group {group} is in the network {vpc}, and the machines would be"
    )
    assert caught.value.hint == f"name a subnet of {vpc} too: --subnet"


def rules(fake: FakeAWS, group: str) -> list[tuple[Any, ...]]:
    """(protocol, port, from whom)"""
    told = fake.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
    return sorted(
        (one["IpProtocol"], one.get("FromPort"), whom)
        for one in told["IpPermissions"]
        for whom in [
            *(by["CidrIp"] for by in one.get("IpRanges") or []),
            *(by["CidrIpv6"] for by in one.get("Ipv6Ranges") or []),
            *(by["GroupId"] for by in one.get("UserIdGroupPairs") or []),
        ]
    )


def made(tenant: Tenant, **options: Any) -> str:
    return next(one.id for one in tenant.make(**options) if one.kind == "group")


def test_a_clusters_group_lets_this_computer_in_and_its_machines_to_each_other(fake: FakeAWS, tenant: Tenant) -> None:
    group = made(tenant)
    assert rules(fake, group) == [("-1", None, group), ("tcp", 22, HERE)]


def test_whom_the_user_names_is_let_in_instead(fake: FakeAWS, tenant: Tenant) -> None:
    tenant.env["GPUOPS_CHECKIP_URL"] = "http://127.0.0.1:9/"
    group = made(tenant, **{"ssh-from": "198.51.100.0/24"})
    assert rules(fake, group) == [("-1", None, group), ("tcp", 22, "198.51.100.0/24")]


def test_a_group_that_aws_has_not_heard_of_everywhere_is_asked_for_again(fake: FakeAWS, tenant: Tenant) -> None:
    clock = FakeClock()
    code = "InvalidGroup.NotFound"
    fake.play(Fault("AuthorizeSecurityGroupIngress", times=3, what="code", code=code))
    account = tenant.provider._account
    vpc = next(iter(network.find_subnets(account, "us-east-1", wish(tenant)).values())).vpc
    group = network.create_group(account.launcher("us-east-1"), "x", vpc, [], "make a group")
    for _ in range(2):  # what is open is no failure
        network.open_group(account.client("ec2", "us-east-1"), group, HERE, given=False, clock=clock)
    assert len(clock.slept) == 3
    assert rules(fake, group) == [("-1", None, group), ("tcp", 22, HERE)]


def test_a_group_that_never_comes_is_given_up(fake: FakeAWS, tenant: Tenant) -> None:
    fake.play(Fault("AuthorizeSecurityGroupIngress", times=None, what="code", code="InvalidGroup.NotFound"))
    clock = FakeClock()
    with pytest.raises(Rejected):
        network.open_group(
            tenant.provider._account.client("ec2", "us-east-1"), "sg-01234567", HERE, given=False, clock=clock
        )
    assert len(clock.slept) == network.MAX_ATTEMPTS - 1
    assert sum(clock.slept) < 60


def test_a_new_address_is_let_in_and_the_former_no_more(fake: FakeAWS, tenant: Tenant) -> None:
    notes = Notes()
    there = tenant.make(notes)
    group = there[0].id
    assert tenant.provider.admit(there) is False
    fake.caller_address = "203.0.113.99"
    assert tenant.provider.admit(there[1:]) is True  # the ledger may know its machines alone
    assert rules(fake, group) == [("-1", None, group), ("tcp", 22, "203.0.113.99/32")]
    assert tenant.provider.admit(there) is False


def test_a_former_address_that_could_not_be_locked_out_is_next_time(fake: FakeAWS, tenant: Tenant) -> None:
    there = tenant.make()
    fake.caller_address = "203.0.113.99"
    fake.play(Fault("RevokeSecurityGroupIngress", times=1, what="code", code="UnauthorizedOperation"))
    with pytest.raises(AuthFailed):
        tenant.provider.admit(there)
    assert ("tcp", 22, HERE) in rules(fake, there[0].id)
    assert tenant.provider.admit(there) is True
    assert rules(fake, there[0].id) == [("-1", None, there[0].id), ("tcp", 22, "203.0.113.99/32")]


def test_a_group_that_somebody_else_opened_further_keeps_that(fake: FakeAWS, tenant: Tenant) -> None:
    there = tenant.make()
    group = there[0].id
    rule = {"IpProtocol": "tcp", "FromPort": 6006, "ToPort": 6006, "IpRanges": [{"CidrIp": "198.51.100.1/32"}]}
    fake.client("ec2").authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    fake.caller_address = "203.0.113.99"
    assert tenant.provider.admit(there) is True
    assert ("tcp", 6006, "198.51.100.1/32") in rules(fake, group)


def test_whom_the_user_named_is_never_changed(fake: FakeAWS, tenant: Tenant) -> None:
    group = made(tenant, **{"ssh-from": "198.51.100.0/24"})
    fake.caller_address = "203.0.113.99"
    assert tenant.provider.admit(tenant.listed("us-east-1")) is False
    assert rules(fake, group) == [("-1", None, group), ("tcp", 22, "198.51.100.0/24")]


class Teller(BaseHTTPRequestHandler):
    says = (200, "")

    def do_GET(self) -> None:
        status, text = self.says
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize(
    ("status", "text", "found"),
    [
        (200, "203.0.113.7\n", HERE),
        (200, "2001:db8::7\n", "2001:db8::7/128"),
        (200, "<html>log in</html>", None),
        (200, "", None),
        (200, "0.0.0.0/0", None),
        (200, "203.0.113.0/24", None),
        (200, "0.0.0.0", None),
        (200, "::", None),
        (200, "::ffff:0.0.0.0", None),
        (200, "127.0.0.1", None),
        (200, "224.0.0.1", None),
        (200, "255.255.255.255", None),
        (200, "10.1.2.3", "10.1.2.3/32"),
        (503, "203.0.113.7", None),
    ],
)
def test_this_computers_address(status: int, text: str, found: str | None) -> None:
    teller = type("Told", (Teller,), {"says": (status, text)})
    with HTTPServer(("127.0.0.1", 0), teller) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"GPUOPS_CHECKIP_URL": f"http://127.0.0.1:{server.server_port}/"}
        if found:
            assert network.find_caller_network(env) == found
        else:
            with pytest.raises(Rejected) as caught:
                network.find_caller_network(env)
            assert "this computer's address" in caught.value.message
            assert caught.value.hint == "say whom SSH is open to: --ssh-from 203.0.113.7"
        server.shutdown()


def test_what_is_no_http_tells_no_address() -> None:
    class Nonsense(Teller):
        def do_GET(self) -> None:
            self.wfile.write(b"nonsense\r\n\r\n")

    with HTTPServer(("127.0.0.1", 0), Nonsense) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(Rejected, match="does not tell this computer's address"):
            network.find_caller_network({"GPUOPS_CHECKIP_URL": f"http://127.0.0.1:{server.server_port}/"})
        server.shutdown()


def test_an_ipv6_address_gets_a_rule_of_its_kind() -> None:
    assert network.ssh_rule("2001:db8::7/128", "x")["Ipv6Ranges"] == [
        {"CidrIpv6": "2001:db8::7/128", "Description": "x"}
    ]
    rules = [
        network.ssh_rule("2001:db8::7/128", network.CALLER_DESCRIPTION),
        network.ssh_rule(HERE, network.SSH_FROM_DESCRIPTION),
    ]
    group = ec2.parse_group({"GroupId": "sg-1", "IpPermissions": rules})
    assert network.followed_networks(group) == ["2001:db8::7/128"]


def test_without_an_address_nothing_is_made(fake: FakeAWS, tenant: Tenant) -> None:
    offer, notes = tenant.offer(), Notes()
    tenant.env["GPUOPS_CHECKIP_URL"] = "http://127.0.0.1:9/"
    with pytest.raises(ProviderError, match="does not tell this computer's address"):
        tenant.make(notes, offer)
    assert notes.lines == []
    assert fake.left() == []


def test_aws_never_sees_a_private_address(monkeypatch: pytest.MonkeyPatch) -> None:
    teller = type("Told", (Teller,), {"says": (200, "10.1.2.3")})
    with HTTPServer(("127.0.0.1", 0), teller) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(network, "CHECKIP_URL", url := f"http://127.0.0.1:{server.server_port}/")
        with pytest.raises(Rejected) as caught:
            network.find_caller_network({})
        server.shutdown()
    assert caught.value.message == f"{url} says that this computer's address is 10.1.2.3, which cannot be"
