"""The provisioner against a fake of AWS: real requests, real answers, nothing behind the machines."""

from __future__ import annotations

import base64
import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import (
    AuthFailed,
    Interrupted,
    NoCapacity,
    Partial,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Rejected,
    Unknown,
)
from gpuops.core.models import Request, Resource
from gpuops.core.provider import Context
from provisioners.aws import AwsProvisioner, launch, network
from provisioners.aws.tags import tag_specifications
from tests.fakes.aws import FakeAWS, Fault
from tests.integration.provisioners.aws.conftest import OWNER, Notes, Tenant

KIND = "gpuops-0a1b2c3d-c-one-"
HOME = "us-east-1"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between attempts are tested with a clock of their own."""
    for module in (launch, network):
        monkeypatch.setattr(module, "backoff_s", lambda _attempt: 0.01)


def machines(there: list[Resource]) -> list[Resource]:
    return [one for one in there if one.kind == "machine"]


def test_whose_account_it_is_is_said_before_anything_is_asked_for(fake: FakeAWS, tenant: Tenant) -> None:
    (note,) = tenant.provider.preflight(tenant.request)
    assert note.say == f"AWS account {fake.account}, as gpuops-tester"
    assert note.hint == "it looks in us-east-1 (--region A,B for others, --profile for another account)"
    assert not note.fatal


def test_keys_that_are_void_stop_it(fake: FakeAWS, tenant: Tenant) -> None:
    fake.wrong_keys()
    (problem,) = tenant.provider.preflight(tenant.request)
    assert problem.fatal
    assert problem.say.startswith("AWS does not accept the credentials")


def test_a_cluster_comes_to_be(fake: FakeAWS, tenant: Tenant) -> None:
    notes = Notes()
    made = tenant.make(notes)
    assert notes.lines == [
        ("will", "group", f"{KIND}group"),
        ("got", "group", f"{KIND}group"),
        ("will", "machine", f"{KIND}0"),
        ("will", "machine", f"{KIND}1"),
        ("got", "machine", f"{KIND}0"),
        ("got", "machine", f"{KIND}1"),
    ]
    assert [one.name for one in made] == [f"{KIND}group", f"{KIND}0", f"{KIND}1"]
    assert all(one.region == "us-east-1" for one in made)
    tokens = {mark: token for _, mark, token, _ in notes.wills}
    assert {one.name: one.data["token"] for one in made} == tokens
    assert all(len(token) <= 48 for token in tokens.values())
    assert len(fake.asked("RunInstances")) == 1
    there = fake.instances()
    assert [one.launch_index for one in there] == [0, 1]
    assert {(one.zone, one.type, one.market) for one in there} == {("us-east-1b", "g5.12xlarge", "spot")}


def test_the_user_data_carries_what_a_machine_needs_and_no_key_of_ours(fake: FakeAWS, tenant: Tenant) -> None:
    made = tenant.make()
    text = fake.instances()[0].user_data
    fake.advance(1)
    public = tenant.provider.describe(made[1]).data["target"]["host_keys"][0]
    assert text.startswith("#cloud-config\n")
    assert public in text
    for secret in fake.secrets:
        assert secret not in text
        assert base64.b64encode(secret.encode()).decode() not in text
    private = (tenant.home / "ssh" / "id_ed25519").read_text()
    assert private.splitlines()[3] not in text  # what stands before is the same in every key
    assert not any(fake.secrets[0] in value for one in fake.instances() for value in one.tags.values())


def test_what_was_made_is_found_by_its_tags_alone(fake: FakeAWS, tenant: Tenant) -> None:
    made = {(one.kind, one.id): one for one in tenant.make()}
    for regions in ((), ("us-east-1",)):
        fresh = AwsProvisioner(Context(OWNER, tenant.home, tenant.env))
        found = {(one.kind, one.id): one for one in fresh.list_owned(OWNER, regions)}
        assert found.keys() == made.keys()
        for key, one in found.items():
            assert (one.name, one.region, one.data["token"]) == (
                made[key].name, made[key].region, made[key].data["token"],
            )  # fmt: skip
    assert tenant.listed("eu-west-1") == []
    stranger = AwsProvisioner(Context("ffffffff", tenant.home, tenant.env))
    assert list(stranger.list_owned("ffffffff", ["us-east-1"])) == []
    assert {(one.kind, one.id) for one in stranger.list_every_owner()} == made.keys(), "what a lost home has left"
    assert len(fake.instances()) == 2


def test_a_machine_is_described_with_its_address_and_its_price(fake: FakeAWS, tenant: Tenant) -> None:
    fake.pending_s = 5.0
    made = machines(tenant.make())
    assert all(tenant.provider.describe(one).state == "starting" for one in made)
    fake.advance(6)
    seen = [tenant.provider.describe(one) for one in made]
    assert [one.state for one in seen] == ["running", "running"]
    assert [round(one.per_hour, 4) for one in seen] == [2.12, 2.12]
    assert len({one.address for one in seen}) == len({one.private_address for one in seen}) == 2
    assert {one.data["spot_request"] for one in seen} == {one.id for one in fake.spot_requests()}


def test_the_end_leaves_nothing(fake: FakeAWS, tenant: Tenant) -> None:
    made = tenant.make()
    tenant.end()
    assert fake.left() == []
    assert [tenant.provider.describe(one).state for one in made] == ["ended"] * 3
    tenant.provider.destroy(made)  # asked again, it is no failure
    assert fake.asked("CancelSpotInstanceRequests") == []


def test_a_group_waits_for_its_machines(fake: FakeAWS, tenant: Tenant) -> None:
    fake.ending_s = 3600.0
    tenant.make()
    for _ in range(2):
        tenant.provider.destroy(tenant.listed(HOME))
    there = tenant.listed(HOME)
    assert {one.kind for one in there} == {"machine", "group"}
    assert {one.state for one in machines(there)} == {"leaving"}
    assert sum(one.per_hour for one in there) == 0
    fake.advance(3601)
    assert [one.kind for one in tenant.listed(HOME)] == ["group"]
    tenant.end()
    assert fake.left() == []


def test_what_machines_left_behind_is_found_and_ended(fake: FakeAWS, tenant: Tenant) -> None:
    """By its tags, as all else: a disk costs on, and a network interface keeps the group."""
    made = machines(tenant.make())
    ec2 = fake.client("ec2")
    told = {str(one["Key"]): str(one["Value"]) for one in ec2.describe_tags(
        Filters=[{"Name": "resource-id", "Values": [made[0].id]}])["Tags"]}  # fmt: skip
    subnet = fake.asked("RunInstances")[0].parameters["NetworkInterfaces"][0]["SubnetId"]
    group = next(one.id for one in tenant.listed(HOME) if one.kind == "group")
    disk = ec2.create_volume(
        AvailabilityZone="us-east-1b", Size=200, TagSpecifications=tag_specifications(told, "volume")
    )["VolumeId"]
    card = ec2.create_network_interface(
        SubnetId=subnet, Groups=[group], TagSpecifications=tag_specifications(told, "network-interface")
    )["NetworkInterface"]["NetworkInterfaceId"]
    there = {one.kind: one for one in tenant.listed(HOME) if one.kind in ("volume", "interface")}
    assert {kind: (one.id, one.name, one.bills) for kind, one in there.items()} == {
        "volume": (disk, f"{KIND}volume", True), "interface": (card, f"{KIND}interface", False),
    }  # fmt: skip
    assert 0.02 < there["volume"].per_hour < 0.03
    assert all(one.data["token"].startswith(made[0].data["token"][:32]) for one in there.values())
    assert {tenant.provider.describe(one).state for one in there.values()} == {"running"}
    assert not any(one.kind in there for one in AwsProvisioner(
        Context(OWNER, tenant.home, tenant.env)).list_owned("ffffffff", [HOME]))  # fmt: skip
    tenant.end()
    assert fake.left() == []
    assert {tenant.provider.describe(one).state for one in there.values()} == {"ended"}
    tenant.provider.destroy(list(there.values()))


def test_disks_are_encrypted_which_some_organizations_insist_on(fake: FakeAWS, tenant: Tenant) -> None:
    tenant.make()
    volumes = fake.client("ec2").describe_volumes()["Volumes"]
    assert len(volumes) >= 2
    assert all(one["Encrypted"] for one in volumes)


def test_a_group_that_something_still_uses_is_left_for_the_next_time(fake: FakeAWS, tenant: Tenant) -> None:
    fake.ending_s = 3600.0
    made = tenant.make()
    tenant.provider.destroy(made[:1])
    assert len(fake.asked("DeleteSecurityGroup")) == 1
    assert tenant.provider.describe(made[0]).state == "running"


def test_one_that_cannot_be_ended_does_not_keep_the_others_from_it(fake: FakeAWS, tenant: Tenant) -> None:
    made = tenant.make()
    gone = dataclasses.replace(made[1], id="i-0123456789abcdef0")
    tenant.provider.destroy([gone, *made[1:]])
    fake.settle()
    assert tenant.provider.describe(made[2]).state in ("leaving", "ended")
    fake.play(Fault("DeleteSecurityGroup", times=None, what="denied"))
    fake.advance(fake.ending_s)
    with pytest.raises(AuthFailed):
        tenant.provider.destroy([made[0], *made[1:]][:1])


def test_a_spot_request_is_cancelled_only_once_its_machine_is_no_more(fake: FakeAWS, tenant: Tenant) -> None:
    fake.close_s = 3600.0
    tenant.make()
    tenant.provider.destroy(machines(tenant.listed(HOME)))
    fake.advance(fake.ending_s)
    left = tenant.listed(HOME)
    assert {one.kind for one in left} == {"group", "spot-request"}
    assert not any(one.bills for one in left)
    assert [tenant.provider.describe(one).state for one in left] == ["running"] * 3
    tenant.end()
    assert fake.left() == []


def test_the_request_of_a_living_machine_is_never_cancelled(fake: FakeAWS, tenant: Tenant) -> None:
    fake.ending_s = 3600.0
    made = machines(tenant.make())
    hidden = [
        dataclasses.replace(one, kind="spot-request", id=str(one.data["spot_request"]), name=f"{KIND}spot", bills=False)
        for one in made
    ]
    tenant.provider.destroy(hidden)
    assert fake.asked("CancelSpotInstanceRequests") == []
    assert {one.state for one in fake.instances()} == {"shutting-down"}


@pytest.mark.parametrize(
    ("code", "http", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, NoCapacity),
        ("MaxSpotInstanceCountExceeded", 400, QuotaExceeded),
        ("Unsupported", 400, NoCapacity),
        ("UnauthorizedOperation", 403, AuthFailed),
        ("InvalidAMIID.NotFound", 400, Rejected),
    ],
)
def test_a_no_leaves_only_what_the_journal_knows(
    fake: FakeAWS, tenant: Tenant, code: str, http: int, kind: type[ProviderError]
) -> None:
    fake.play(Fault("RunInstances", times=None, what="code", code=code, http=http))
    notes = Notes()
    with pytest.raises(kind):
        tenant.make(notes)
    assert len(fake.asked("RunInstances")) == 1
    assert [one.kind for one in notes.made] == ["group"]
    assert fake.instances() == []
    tenant.end()
    assert fake.left() == []


def test_awss_own_image_that_is_gone_at_the_launch_is_replaced_by_the_next(fake: FakeAWS, tenant: Tenant) -> None:
    offer = tenant.offer()
    offer = dataclasses.replace(offer, data={**offer.data, "ami_ours": True})
    fake.pictures = [
        dataclasses.replace(one, state="gone") if one.id(HOME) == offer.data["ami"] else one for one in fake.pictures
    ]
    assert len(machines(tenant.make(offer=offer))) == 2
    before, after = fake.asked("RunInstances")
    assert before.error == "InvalidAMIID.NotFound"
    assert (before.parameters["ImageId"], after.error) == (offer.data["ami"], "")
    assert after.parameters["ImageId"] != offer.data["ami"]


def test_an_account_on_the_free_plan_is_told_so_before_anything_is_made(fake: FakeAWS, tenant: Tenant) -> None:
    fake.plan = "FREE"
    found, _ = tenant.provider.preflight(tenant.request)
    assert found.fatal
    small = Request("aws", options={"instance-type": "t3.micro"})
    assert not tenant.provider.preflight(small)[0].fatal
    assert "on the Free Plan" in found.say
    assert "paid plan" in found.hint
    assert "on the Free Plan" in tenant.provider.quota(tenant.request).notes[0]
    with pytest.raises(Rejected, match="on the Free Plan"):
        tenant.make()
    assert fake.instances() == []


@pytest.mark.parametrize("how", ["denied", "old", "silent"])
def test_a_plan_that_is_not_told_stops_nobody(fake: FakeAWS, tenant: Tenant, how: str) -> None:
    if how == "denied":
        fake.deny("freetier:*")
    elif how == "old":
        fake.plan = ""
    else:
        fake.play(Fault("GetAccountPlanState", what="cut"))
    for _ in range(2):
        assert [one.note for one in tenant.provider.preflight(tenant.request)] == [True]
    assert len(fake.asked("GetAccountPlanState")) == 1


@pytest.mark.parametrize("what", ["lost", "broken", "500", "503", "throttle", "half", "garbage", "cut"])
def test_one_answer_that_goes_wrong_makes_nothing_twice(fake: FakeAWS, tenant: Tenant, what: str) -> None:
    fake.play(Fault("RunInstances", what=what))
    made = tenant.make()
    assert len(machines(made)) == 2
    assert len(fake.instances()) == 2
    tokens = {one.parameters["ClientToken"] for one in fake.asked("RunInstances")}
    assert (len(fake.asked("RunInstances")), len(tokens)) == (2, 1)


@pytest.mark.parametrize("what", ["lost", "broken", "half"])
def test_answers_that_never_come_are_unknown_and_found(fake: FakeAWS, tenant: Tenant, what: str) -> None:
    fake.play(Fault("RunInstances", times=None, what=what))
    with pytest.raises(Unknown):
        tenant.make()
    assert [one.name for one in machines(tenant.listed(HOME))] == [f"{KIND}0", f"{KIND}1"]
    assert len(fake.instances()) == 2
    tenant.end()
    assert fake.left() == []


def test_a_quota_behind_a_lost_answer_has_its_numbers(fake: FakeAWS, tenant: Tenant) -> None:
    fake.play(Fault("RunInstances"), Fault("RunInstances", nth=2, what="code", code="MaxSpotInstanceCountExceeded"))
    with pytest.raises(Unknown) as caught:
        tenant.make()
    assert isinstance(caught.value.instead, QuotaExceeded)
    assert "2 x 48 vCPU" in caught.value.instead.message
    assert "gpuops quota aws" in caught.value.instead.hint
    assert fake.instances() == []


def test_throttled_for_good_is_rate_limited(fake: FakeAWS, tenant: Tenant) -> None:
    fake.play(Fault("RunInstances", times=None, what="throttle"))
    with pytest.raises(RateLimited):
        tenant.make()
    assert fake.instances() == []


@pytest.mark.parametrize("what", ["lost", "broken", "half"])
def test_a_group_whose_answer_is_lost_is_found_by_its_tag(fake: FakeAWS, tenant: Tenant, what: str) -> None:
    fake.play(Fault("CreateSecurityGroup", what=what))
    notes = Notes()
    with pytest.raises(Unknown):
        tenant.make(notes)
    assert len(fake.asked("CreateSecurityGroup")) == 1
    assert notes.made == []
    assert [(one.kind, one.name) for one in tenant.listed(HOME)] == [("group", f"{KIND}group")]
    tenant.end()
    assert fake.left() == []


@pytest.mark.parametrize("at", [0, 1, 2])
def test_who_is_ending_the_cluster_is_heard(fake: FakeAWS, tenant: Tenant, at: int) -> None:
    class Ending(Notes):
        def will(self, kind: str, mark: str, token: str, region: str) -> None:
            if len(self.wills) == at:
                raise Interrupted("another command ends it")
            super().will(kind, mark, token, region)

    with pytest.raises(Interrupted):
        tenant.make(Ending())
    assert fake.instances() == []
    assert len(fake.left()) == (1 if at else 0)


def test_a_group_of_ones_own_is_used_and_never_ended(fake: FakeAWS, tenant: Tenant) -> None:
    client = fake.client("ec2")
    vpc = client.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = client.create_security_group(GroupName="mine", Description="x", VpcId=vpc)["GroupId"]
    made = tenant.make(**{"security-group": group})
    assert [one.kind for one in made] == ["machine", "machine"]
    assert tenant.provider.admit(made) is False
    tenant.end()
    assert client.describe_security_groups(GroupIds=[group])["SecurityGroups"]


def test_what_is_made_with_a_profile_is_found_without_it(fake: FakeAWS, tenant: Tenant) -> None:
    offer = dataclasses.replace(tenant.offer("us-east-1@work"), region="us-east-1@work")
    made = tenant.make(offer=offer)
    assert {one.region for one in made} == {"us-east-1@work"}
    assert made[1].data["account"] == {"id": fake.account, "profile": "work"}
    fresh = AwsProvisioner(Context(OWNER, tenant.home, tenant.env))
    found = fresh.list_owned(OWNER, [])
    assert {(one.id, one.region) for one in found} == {(one.id, one.region) for one in made}
    fresh.destroy(found)


def test_right_after_its_creation_a_machine_may_not_be_known(fake: FakeAWS, tenant: Tenant) -> None:
    def lags(request: Any, moment: str) -> None:
        if (request.action, moment) == ("RunInstances", "after"):
            fake.lag_s = 30.0

    fake.on_answer(lags)
    made = tenant.make()
    assert tenant.provider.describe(made[1]).state == "ended"  # which the core believes after `settle_s` only
    assert tenant.provider.settle_s >= 30
    fake.advance(31)
    assert tenant.provider.describe(made[1]).state == "running"
    assert len(tenant.listed(HOME)) == 3


def test_what_another_accounts_credentials_do_not_find_may_go_on_there(fake: FakeAWS, tenant: Tenant) -> None:
    made = tenant.make()
    for one in made:
        other = dataclasses.replace(one, id=one.id[:-4] + "0000", data={**one.data, "account": {"id": "999999999999"}})
        with pytest.raises(AuthFailed) as caught:
            tenant.provider.describe(other)
        assert caught.value.message == (
            f"{one.name} is in the AWS account 999999999999, and these credentials are gpuops-tester's of "
            f"{fake.account}"
        )


def test_a_region_that_does_not_answer_is_never_taken_for_empty(fake: FakeAWS, tenant: Tenant) -> None:
    made = tenant.make()
    fake.play(Fault("DescribeInstances", region="eu-west-1", times=None, what="500"))
    with pytest.raises(Partial) as caught:
        tenant.listed()
    assert caught.value.message.startswith(
        "AWS does not tell what there is in eu-west-1: AWS failed to list machines in eu-west-1"
    )
    assert {one.id for one in caught.value.found} == {one.id for one in made}
    with pytest.raises(Unknown) as alone:
        tenant.listed("eu-west-1")
    assert not isinstance(alone.value, Partial)
    assert len(tenant.listed("us-east-1")) == 3


def test_a_region_that_the_organization_closes_holds_nothing(fake: FakeAWS, tenant: Tenant) -> None:
    """As many do. One that is asked by name, since something was made there, must answer all the same."""
    made = tenant.make()
    say = "User: x is not authorized to perform: ec2:DescribeInstances with an explicit deny in"

    def closed(region: str, rule: str) -> Fault:
        answer = {"code": "UnauthorizedOperation", "http": 403, "message": f"{say} {rule}"}
        return Fault("DescribeInstances", region=region, times=None, what="code", **answer)  # type: ignore[arg-type]

    fake.play(closed("eu-west-1", "a service control policy"), closed("us-west-2", "an identity-based policy"))
    with pytest.raises(Partial) as caught:
        tenant.listed()
    assert caught.value.message.startswith("AWS does not tell what there is in us-west-2: ")
    assert {one.id for one in caught.value.found} == {one.id for one in made}
    with pytest.raises(AuthFailed, match="a policy of the account or its organization"):
        tenant.listed("eu-west-1")
    fake.play(closed("", "a service control policy"))
    with pytest.raises(AuthFailed):  # all of them: then nothing is known of any
        tenant.listed()


@pytest.mark.parametrize("action", ["DescribeInstances", "DescribeSecurityGroups", "DescribeSpotInstanceRequests"])
def test_without_the_permission_to_look_nothing_is_listed_as_empty(fake: FakeAWS, tenant: Tenant, action: str) -> None:
    tenant.make()
    fake.deny(f"ec2:{action}")
    with pytest.raises(AuthFailed, match=f"lack the permission ec2:{action}"):
        tenant.listed(HOME)
    if action == "DescribeInstances":
        with pytest.raises(AuthFailed, match=f"lack the permission ec2:{action}"):
            tenant.listed()


def test_a_profile_that_is_no_more_is_said(fake: FakeAWS, tenant: Tenant) -> None:
    made = tenant.make()
    (tenant.home / "aws-profiles").write_text("gone\n")
    with pytest.raises(Partial, match="the account of profile gone"):
        tenant.listed()
    assert len(fake.instances()) == len(machines(made))


def test_one_that_aws_took_back_says_so(fake: FakeAWS, tenant: Tenant) -> None:
    made = machines(tenant.make())
    fake.settle()
    fake.reclaim(made[0].id)
    fake.advance(5)
    seen = tenant.provider.describe(made[0])
    assert seen.state == "leaving"
    assert seen.data["reclaimed"] is True
    assert tenant.provider.describe(made[1]).data["reclaimed"] is False


def test_one_that_switches_itself_off_is_ended(fake: FakeAWS, tenant: Tenant) -> None:
    made = machines(tenant.make())
    fake.advance(1)
    fake.power_off(made[1].id)
    fake.advance(5)
    seen = tenant.provider.describe(made[1])
    assert (seen.state, seen.data["why_ended"]) == ("leaving", "it has switched itself off")


@pytest.mark.parametrize(
    ("user", "argv"), [("root", ["systemctl", "poweroff"]), ("ubuntu", ["sudo", "-n", "systemctl", "poweroff"])]
)
def test_how_a_machine_ends_itself(tenant: Tenant, user: str, argv: list[str]) -> None:
    one = Resource("machine", "i-1", "us-east-1", "x", True, data={"target": {"user": user}})
    assert tenant.provider.self_destruct(one) == argv


def test_the_last_words_of_a_console(fake: FakeAWS, tenant: Tenant) -> None:
    made = tenant.make()
    fake.advance(1)
    fake.console[made[1].id] = "\x1b[32mboot\x1b[0m\n\n" + "".join(f"line {number}\r\n" for number in range(30))
    words = tenant.provider.last_words(made[1]).splitlines()
    assert (len(words), words[-1]) == (20, "line 29")
    assert tenant.provider.last_words(made[0]) == ""


def test_offers_are_asked_of_the_request(fake: FakeAWS, tenant: Tenant) -> None:
    found = tenant.provider.offers(dataclasses.replace(tenant.request, gpu_type="a10g", options={"disk": 300}))
    assert found
    assert all(offer.nodes == 2 and offer.data["disk"] == 300 for offer in found)
    notes = Notes()
    made = tenant.provider.create(found[0], tenant.intent(), notes)
    assert len(machines(list(made))) == 2
    assert fake.instances()[0].type == found[0].data["type"]


def test_it_costs_nothing_to_make_one(tmp_path: Path) -> None:
    began = time.monotonic()
    provider = AwsProvisioner(Context(OWNER, tmp_path, {}))
    assert time.monotonic() - began < 30.0
    assert list(tmp_path.iterdir()) == []
    names: list[Any] = [option.name for option in provider.options]
    assert names == [
        "instance-type",
        "cpu",
        "zone",
        "disk",
        "profile",
        "subnet",
        "public-ip",
        "security-group",
        "ami",
        "instance-profile",
        "reservation",
        "placement-group",
        "user",
        "ssh-from",
    ]
    with pytest.raises(ProviderError, match="there are no AWS credentials"):
        AwsProvisioner(Context(OWNER, tmp_path, {"HOME": str(tmp_path)})).offers(Request("aws"))


@pytest.mark.parametrize("given", ["trainer", "arn:aws:iam::123456789012:instance-profile/team/trainer"])
def test_what_the_user_has_is_taken_and_what_is_not_there_is_said(fake: FakeAWS, tenant: Tenant, given: str) -> None:
    options = {"instance-profile": given, "placement-group": "ring"}
    with pytest.raises(Rejected, match="Invalid IAM Instance Profile"):
        tenant.make(**options)
    tenant.cluster = "c-two"
    fake.instance_profiles.add("trainer")
    with pytest.raises(Rejected, match="the placement group is not there"):
        tenant.make(**options)
    tenant.cluster = "c-three"
    fake.placement_groups.add("ring")
    tenant.make(**options)
    asked = [one for one in fake.requests if one.action == "RunInstances"][-1].parameters
    assert asked["Placement"] == {"GroupName": "ring"}
    assert asked["IamInstanceProfile"] == {"Arn" if given.startswith("arn:") else "Name": given}
    tenant.cluster = "c-four"
    fake.deny("iam:PassRole")
    with pytest.raises(AuthFailed, match="may not give machines that instance profile") as caught:
        tenant.make(**options)
    assert "allow iam:PassRole on the role" in caught.value.hint
