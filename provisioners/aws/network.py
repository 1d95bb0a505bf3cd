"""The network of machines: a subnet for each zone, and a security group that lets this computer in.

A group's rule for this computer follows its address; a network that the user has named stays as it is.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.errors import ProviderError, Rejected, UsageError
from gpuops.core.polling import Clock
from provisioners.aws import ec2, errors
from provisioners.aws.account import Account
from provisioners.aws.api import Document, ask, split_region
from provisioners.aws.ec2 import SecurityGroup
from provisioners.aws.options import Wishes

CHECKIP_URL = "https://checkip.amazonaws.com"
CHECKIP_TIMEOUT_S = 10.0
CALLER_DESCRIPTION = "gpuops: whoever brought the cluster up"
"""Description of the rule that follows this computer's address."""
SSH_FROM_DESCRIPTION = "gpuops: --ssh-from"
MEMBERS_DESCRIPTION = "gpuops: between its machines"
MAX_ATTEMPTS = 6
"""A new group is not known at once in all of AWS: calls about it are retried this often."""


@dataclass(frozen=True)
class Subnet:
    """One zone's subnet."""

    subnet: str
    vpc: str
    public: bool
    """Whether its machines get public addresses."""


def find_subnets(account: Account, region: str, wishes: Wishes) -> dict[str, Subnet]:
    """The subnet of each zone: those that the user has named, else the default network's. Raises ProviderError,
    UsageError."""
    client, name = account.client("ec2", region), split_region(region)[0]
    found: dict[str, Subnet] = {}
    for subnet in _named_subnets(client, name, wishes) if wishes.subnets else _default_subnets(client, name):
        if subnet.zone in found:
            raise UsageError(
                f"the subnets {found[subnet.zone].subnet} and {subnet.id} are both in {subnet.zone}",
                "name one for each zone",
            )
        public = not wishes.subnets or wishes.public_ip or subnet.gives_public_addresses
        found[subnet.zone] = Subnet(subnet.id, subnet.vpc, public)
    if wishes.zone and wishes.zone not in found:
        raise UsageError(
            f"there is no subnet of ours in the zone {wishes.zone}: in {name} they are in {', '.join(sorted(found))}",
            "name one of these zones (--zone), or a subnet there (--subnet)",
        )
    found = {zone: subnet for zone, subnet in found.items() if wishes.zone in ("", zone)}
    _check_network(client, name, wishes, list(found.values()))
    return found


def _named_subnets(client: Any, region: str, wishes: Wishes) -> list[ec2.Subnet]:
    plural = "s" * (len(wishes.subnets) > 1)
    doing = f"look at the subnet{plural} {', '.join(wishes.subnets)} in {region}"
    return ec2.list_subnets(client, doing, ids=list(wishes.subnets))


def _default_subnets(client: Any, region: str) -> list[ec2.Subnet]:
    vpc = ec2.find_default_vpc(client, f"look for the default network in {region}")
    if not vpc:
        raise Rejected(f"the account has no default network (VPC) in {region}", errors.NO_VPC.format(region=region))
    filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "default-for-az", "Values": ["true"]}]
    subnets = ec2.list_subnets(client, f"list subnets in {region}", filters)
    if not subnets:
        raise Rejected(
            f"the default network in {region} has no subnets of its own",
            f"make one: aws ec2 create-default-subnet --availability-zone {region}a; or name one: --subnet subnet-…",
        )
    return subnets


def _check_network(client: Any, region: str, wishes: Wishes, subnets: Sequence[Subnet]) -> None:
    """Raises UsageError, ProviderError where the wishes do not go with the network."""
    if wishes.security_group:
        doing = f"look at the security group {wishes.security_group} in {region}"
        group = next(iter(ec2.list_groups(client, doing, ids=[wishes.security_group])), None)
        vpc = group.vpc if group else ""
        if others := sorted({subnet.vpc for subnet in subnets} - {vpc}):
            raise UsageError(
                f"the security group {wishes.security_group} is in the network {vpc}, and the machines would be in "
                f"{', '.join(others)}",
                f"name a subnet of {vpc} too: --subnet",
            )
        return
    private = [] if wishes.ssh_from else [subnet.subnet for subnet in subnets if not subnet.public]
    if private:
        raise UsageError(
            f"the subnet {private[0]} gives its machines no public address",
            "let them have one with --public-ip, say from where inside they are reached with --ssh-from 10.0.0.0/8, or "
            "name another subnet",
        )


def find_caller_network(env: Mapping[str, str]) -> str:
    """This computer's address as AWS sees it, as a CIDR. Raises Rejected."""
    import http.client
    import urllib.request

    url = env.get("GPUOPS_CHECKIP_URL", "").strip() or CHECKIP_URL
    hint = "say whom SSH is open to: --ssh-from 203.0.113.7"
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "gpuops"})
        with urllib.request.urlopen(request, timeout=CHECKIP_TIMEOUT_S) as answer:
            text = answer.read(200).decode("ascii", "replace").strip()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Rejected(f"{url} does not tell this computer's address: {error}", hint) from error
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise Rejected(f"{url} does not tell this computer's address", hint) from None
    impossible = address.is_unspecified or address.is_multicast or address.is_reserved or address.is_loopback
    # A service of the user's own may see an address inside a network of theirs; AWS never does.
    if impossible or (address.is_private and url == CHECKIP_URL):
        raise Rejected(f"{url} says that this computer's address is {address}, which cannot be", hint)
    return str(ipaddress.ip_network(address))


def ssh_rule(cidr: str, description: str) -> Document:
    """SSH from one network."""
    permission = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    if ":" in cidr:
        return {**permission, "Ipv6Ranges": [{"CidrIpv6": cidr, "Description": description}]}
    return {**permission, "IpRanges": [{"CidrIp": cidr, "Description": description}]}


def members_rule(group: str) -> Document:
    """Everything between the members of a group."""
    return {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group, "Description": MEMBERS_DESCRIPTION}]}


def create_group(client: Any, name: str, vpc: str, tags: Sequence[Document], doing: str) -> str:
    """The id of a new security group, open to no connection. `client`: one without retries. Raises ProviderError."""
    made = ask(
        doing,
        client.create_security_group,
        creating=True,
        GroupName=name,
        Description="SSH for whoever brought a gpuops cluster up, everything between its machines",
        VpcId=vpc,
        TagSpecifications=list(tags),
    )
    return str(made["GroupId"])


def open_group(client: Any, group: str, cidr: str, *, given: bool, clock: Clock) -> None:
    """Let a network in by SSH, and the machines to each other. Idempotent. Raises ProviderError.

    given   whether the user has named the network; without, it is this computer's and follows its address
    """
    description = SSH_FROM_DESCRIPTION if given else CALLER_DESCRIPTION
    for rule in (ssh_rule(cidr, description), members_rule(group)):
        _allow(client, group, rule, clock)


def _allow(client: Any, group: str, rule: Document, clock: Clock) -> None:
    """Add a rule to a group that may have been made a moment ago."""
    for attempt in range(MAX_ATTEMPTS):
        try:
            ask(
                f"open the security group {group}",
                client.authorize_security_group_ingress,
                GroupId=group,
                IpPermissions=[rule],
            )
            return
        except ProviderError as error:
            if errors.code(error) == "InvalidPermission.Duplicate":
                return
            if not is_not_propagated(error) or attempt == MAX_ATTEMPTS - 1:
                raise
        clock.sleep(backoff_s(attempt))


def is_not_propagated(error: ProviderError) -> bool:
    """Whether AWS does not know the group yet: a new one takes seconds to reach all of its servers."""
    return errors.code(error) in (
        "InvalidGroup.NotFound",
        "InvalidGroupId.NotFound",
        "InvalidSecurityGroupID.NotFound",
    )


def backoff_s(attempt: int) -> float:
    """Exponential back-off with jitter, at most 16 s. `attempt`: from 0."""
    return float(min(2.0**attempt, 16.0) * random.uniform(0.5, 1.0))


def followed_networks(group: SecurityGroup) -> list[str]:
    """The networks of a group's rules that follow this computer's address."""
    return [rule.cidr for rule in group.rules if rule.description == CALLER_DESCRIPTION]


def follow_caller(client: Any, group: SecurityGroup, cidr: str) -> bool:
    """Let this computer's present address into a group, and former ones no more. Returns whether that was needed.

    A group that lets in whom the user has named is left as it is. Raises ProviderError.
    """
    followed = followed_networks(group)
    if not followed or followed == [cidr]:
        return False
    if cidr not in followed:
        _change_rule(client.authorize_security_group_ingress, group.id, cidr, "InvalidPermission.Duplicate")
    for former in followed:
        if former != cidr:
            _change_rule(client.revoke_security_group_ingress, group.id, former, "InvalidPermission.NotFound")
    return True


def _change_rule(change: Callable[..., Any], group: str, cidr: str, done_code: str) -> None:
    """Add or remove the rule for this computer. `done_code`: AWS's code where that was done before."""
    rule = ssh_rule(cidr, CALLER_DESCRIPTION)
    try:
        ask(f"let this computer into the security group {group}", change, GroupId=group, IpPermissions=[rule])
    except ProviderError as error:
        if errors.code(error) != done_code:
            raise
