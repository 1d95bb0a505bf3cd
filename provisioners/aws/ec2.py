"""What EC2 answers about instances, spot requests, security groups, volumes and network interfaces, as types.

Here alone its documents are read: each question is a function that returns types, or raises ProviderError. What EC2
does not say is empty, 0 or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from gpuops.core.errors import ProviderError
from provisioners.aws import tags
from provisioners.aws.api import Document, ask, pages
from provisioners.aws.errors import code


class InstanceState(Enum):
    """AWS's own words for the state of an instance.

    No machine is billed from `shutting-down` on, and none comes back from there; its security group cannot go before it
    has (AWS, "instance lifecycle").
    """

    PENDING = "pending"
    RUNNING = "running"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"
    STOPPING = "stopping"
    STOPPED = "stopped"
    OTHER = ""
    """A word that is not documented."""

    @classmethod
    def _missing_(cls, _: object) -> InstanceState:
        return cls.OTHER


COUNTED_STATES = (InstanceState.PENDING, InstanceState.RUNNING)
"""Of machines that count against a quota."""
LISTED_STATES = (*COUNTED_STATES, InstanceState.SHUTTING_DOWN, InstanceState.STOPPING, InstanceState.STOPPED)
"""Of machines that are not gone for good."""


@dataclass(frozen=True)
class Instance:
    id: str
    index: int
    """Its place among those of one launch."""
    state: InstanceState
    state_word: str
    """The state as AWS spells it."""
    reason: str
    """The code of why it is in that state."""
    reason_words: str
    public_address: str
    private_address: str
    zone: str
    type: str
    lifecycle: str
    """`spot`, `capacity-block`, …; empty: on demand."""
    spot_request: str
    vcpus: int | None
    """None: as many as its type has."""
    tags: Mapping[str, str]

    @property
    def is_ending(self) -> bool:
        return self.state in (InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED)

    @property
    def address(self) -> str:
        """Where its sshd is reached; empty while it has no address, or once it ends."""
        if self.is_ending:
            return ""
        return self.public_address if self.tags.get(tags.PUBLIC) != "false" else self.private_address


class SpotRequestState(Enum):
    OPEN = "open"
    ACTIVE = "active"
    OTHER = ""
    """Closed, cancelled or failed: it does not count."""

    @classmethod
    def _missing_(cls, _: object) -> SpotRequestState:
        return cls.OTHER


COUNTED_REQUESTS = {"Name": "state", "Values": [SpotRequestState.OPEN.value, SpotRequestState.ACTIVE.value]}
"""The filter for requests that count against a quota."""


@dataclass(frozen=True)
class SpotRequest:
    """One that is open may still start a machine; one that is active may count against the quota after its machine has
    ended."""

    id: str
    state: SpotRequestState
    type: str
    instance: str
    """The id of its machine; empty before there is one."""
    created: float
    """UTC seconds; 0 where AWS does not say."""
    tags: Mapping[str, str]

    @property
    def counts(self) -> bool:
        return self.state is not SpotRequestState.OTHER


@dataclass(frozen=True)
class NetworkRule:
    """One network that a security group lets in."""

    cidr: str
    description: str


@dataclass(frozen=True)
class SecurityGroup:
    id: str
    vpc: str
    rules: Sequence[NetworkRule]
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Volume:
    id: str
    size_gb: float
    is_deleting: bool
    tags: Mapping[str, str]


@dataclass(frozen=True)
class NetworkInterface:
    id: str
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Subnet:
    id: str
    vpc: str
    zone: str
    gives_public_addresses: bool
    """Whether its machines get public addresses unless that is asked for or declined."""


# Answers, parsed.


def parse_instance(document: Document) -> Instance:
    word = str(_inner(document, "State").get("Name") or "")
    reason, cpus = _inner(document, "StateReason"), _inner(document, "CpuOptions")
    cores, threads = int(cpus.get("CoreCount") or 0), int(cpus.get("ThreadsPerCore") or 0)
    return Instance(
        id=str(document.get("InstanceId")),
        index=int(document.get("AmiLaunchIndex") or 0),
        state=InstanceState(word),
        state_word=word,
        reason=str(reason.get("Code") or ""),
        reason_words=str(reason.get("Message") or document.get("StateTransitionReason") or ""),
        public_address=str(document.get("PublicIpAddress") or ""),
        private_address=str(document.get("PrivateIpAddress") or ""),
        zone=str(_inner(document, "Placement").get("AvailabilityZone") or ""),
        type=str(document.get("InstanceType") or ""),
        lifecycle=str(document.get("InstanceLifecycle") or ""),
        spot_request=str(document.get("SpotInstanceRequestId") or ""),
        vcpus=cores * threads or None,
        tags=tags.parse_tags(document.get("Tags")),
    )


def parse_instances(answer: Document) -> list[Instance]:
    """The instances of RunInstances' answer, or of one reservation of DescribeInstances'."""
    return [parse_instance(document) for document in answer.get("Instances") or []]


def parse_spot_request(document: Document) -> SpotRequest:
    created = document.get("CreateTime")
    return SpotRequest(
        id=str(document.get("SpotInstanceRequestId")),
        state=SpotRequestState(document.get("State")),
        type=str(_inner(document, "LaunchSpecification").get("InstanceType") or ""),
        instance=str(document.get("InstanceId") or ""),
        created=created.timestamp() if isinstance(created, datetime) else 0.0,
        tags=tags.parse_tags(document.get("Tags")),
    )


def parse_group(document: Document) -> SecurityGroup:
    rules = [
        NetworkRule(str(entry.get(key)), str(entry.get("Description") or ""))
        for permission in document.get("IpPermissions") or []
        for ranges, key in (("IpRanges", "CidrIp"), ("Ipv6Ranges", "CidrIpv6"))
        for entry in permission.get(ranges) or []
    ]
    return SecurityGroup(
        str(document["GroupId"]), str(document.get("VpcId") or ""), rules, tags.parse_tags(document.get("Tags"))
    )


def parse_volume(document: Document) -> Volume:
    return Volume(
        str(document["VolumeId"]),
        float(document.get("Size") or 0),
        document.get("State") == "deleting",
        tags.parse_tags(document.get("Tags")),
    )


def parse_interface(document: Document) -> NetworkInterface:
    return NetworkInterface(str(document["NetworkInterfaceId"]), tags.parse_tags(document.get("TagSet")))


def parse_subnet(document: Document) -> Subnet:
    return Subnet(
        str(document["SubnetId"]),
        str(document["VpcId"]),
        str(document["AvailabilityZone"]),
        bool(document.get("MapPublicIpOnLaunch")),
    )


def _inner(document: Document, name: str) -> Document:
    inner: Document = document.get(name) or {}
    return inner


# Questions about everything that filters match. `doing`: what an error says was tried.


def list_instances(client: Any, doing: str, filters: Sequence[Document]) -> list[Instance]:
    reservations = pages(doing, client, "describe_instances", "Reservations", Filters=filters)
    return [instance for reservation in reservations for instance in parse_instances(reservation)]


def list_spot_requests(client: Any, doing: str, filters: Sequence[Document]) -> list[SpotRequest]:
    documents = pages(doing, client, "describe_spot_instance_requests", "SpotInstanceRequests", Filters=filters)
    return [parse_spot_request(document) for document in documents]


def list_groups(
    client: Any, doing: str, filters: Sequence[Document] = (), *, ids: Sequence[str] = ()
) -> list[SecurityGroup]:
    """By filters, or by ids: one that is not there is then an error."""
    which = {"GroupIds": ids} if ids else {"Filters": filters}
    documents = pages(doing, client, "describe_security_groups", "SecurityGroups", **which)
    return [parse_group(document) for document in documents]


def list_volumes(client: Any, doing: str, filters: Sequence[Document]) -> list[Volume]:
    documents = pages(doing, client, "describe_volumes", "Volumes", Filters=filters)
    return [parse_volume(document) for document in documents]


def list_interfaces(client: Any, doing: str, filters: Sequence[Document]) -> list[NetworkInterface]:
    documents = pages(doing, client, "describe_network_interfaces", "NetworkInterfaces", Filters=filters)
    return [parse_interface(document) for document in documents]


def list_subnets(client: Any, doing: str, filters: Sequence[Document] = (), *, ids: Sequence[str] = ()) -> list[Subnet]:
    """By filters, or by ids: one that is not there is then an error."""
    which = {"SubnetIds": ids} if ids else {"Filters": filters}
    return [parse_subnet(document) for document in pages(doing, client, "describe_subnets", "Subnets", **which)]


def find_default_vpc(client: Any, doing: str) -> str:
    """The id of a region's default network; empty where there is none."""
    filters = [{"Name": "is-default", "Values": ["true"]}]
    documents = pages(doing, client, "describe_vpcs", "Vpcs", Filters=filters)
    return str(documents[0]["VpcId"]) if documents else ""


# Questions about one thing; None where EC2 says that there is none of that id.


def find_instance(client: Any, id_: str) -> Instance | None:
    answer = _ask_or_empty(f"look at the machine {id_}", client.describe_instances, InstanceIds=[id_])
    reservations = answer.get("Reservations") or []
    return next((instance for reservation in reservations for instance in parse_instances(reservation)), None)


def find_spot_request(client: Any, id_: str) -> SpotRequest | None:
    doing = f"look at the spot request {id_}"
    answer = _ask_or_empty(doing, client.describe_spot_instance_requests, SpotInstanceRequestIds=[id_])
    return next(map(parse_spot_request, answer.get("SpotInstanceRequests") or []), None)


def find_group(client: Any, id_: str) -> SecurityGroup | None:
    answer = _ask_or_empty(f"look at the security group {id_}", client.describe_security_groups, GroupIds=[id_])
    return next(map(parse_group, answer.get("SecurityGroups") or []), None)


def find_volume(client: Any, id_: str) -> Volume | None:
    answer = _ask_or_empty(f"look at the volume {id_}", client.describe_volumes, VolumeIds=[id_])
    return next(map(parse_volume, answer.get("Volumes") or []), None)


def find_interface(client: Any, id_: str) -> NetworkInterface | None:
    doing = f"look at the network interface {id_}"
    answer = _ask_or_empty(doing, client.describe_network_interfaces, NetworkInterfaceIds=[id_])
    return next(map(parse_interface, answer.get("NetworkInterfaces") or []), None)


def is_absent(error: ProviderError) -> bool:
    """Whether AWS says that there is no such thing."""
    return code(error).endswith(".NotFound")


def _ask_or_empty(doing: str, call: Callable[..., Any], **parameters: Any) -> Document:
    try:
        answer: Document = ask(doing, call, **parameters)
        return answer
    except ProviderError as error:
        if is_absent(error):
            return {}
        raise
