"""Instances and spot requests as AWS describes them, and everything of ours at AWS as a `Resource`. Pure.

Our mark at AWS is tags, given in the very call that creates a thing; they hold all that is needed to know it again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from gpuops.core.models import Intent, Resource
from provisioners.aws.account import Identity
from provisioners.aws.api import split_region
from provisioners.aws.boot_script import WATCH
from provisioners.aws.pricing import DISK_MONTHLY, HOURS_PER_MONTH

# Kinds of resources beside `machine`.
GROUP = "group"
SPOT_REQUEST = "spot-request"
VOLUME = "volume"
INTERFACE = "interface"
MARK_PARTS = {GROUP: "group", SPOT_REQUEST: "spot", VOLUME: "volume", INTERFACE: "interface"}
"""The last part of a resource's mark, by its kind."""

# Tags.
MANAGED = "gpuops:managed"
OWNER = "gpuops:owner"
CLUSTER = "gpuops:cluster"
TOKEN = "gpuops:token"
HOST_KEY = "gpuops:host-key"
USER = "gpuops:user"
PRICE = "gpuops:price"
END = "gpuops:end"
PUBLIC = "gpuops:public"

UNATTACHED = {"Name": "status", "Values": ["available"]}
"""The filter for volumes and network interfaces that belong to no machine any more: both go with their machine, as a
rule."""
SPOT_NOTICES = {"kind": "ec2", "url": "http://169.254.169.254"}
ENV = {"NCCL_NET": "Socket"}
"""AWS's image brings NCCL's plug-in for EFA, which machines here lack: it falls back noisily (aws-ofi-nccl #174)."""
SCRATCH = "/opt/dlami/nvme"
"""Where the Deep Learning AMI mounts local NVMe disks, on machines that have any (AWS's release notes of the image)."""
PREEMPTED = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
OF_AWS = "Server."
"""What a reason begins with that lies with AWS: a machine that ended for it can be replaced."""
WHY_ENDED = {
    **dict.fromkeys(PREEMPTED, "AWS took it back: a spot machine, whose capacity others pay more for"),
    "Server.InsufficientInstanceCapacity": "AWS had no capacity for it after all",
    "Server.ScheduledStop": "AWS ended it for maintenance",
    "Server.InternalError": "AWS failed to start it",
    "Client.VolumeLimitExceeded": "the account may not have more disks in that region",
    "Client.InvalidSnapshot.NotFound": "its image's disk is not there",
    "Client.InternalError": "its disk could not be read: AWS says that this is an encrypted image's key, mostly",
    "Client.UserInitiatedShutdown": "somebody has ended it",
    "Client.InstanceInitiatedShutdown": "it has switched itself off",
}
"""A sentence for a StateReason's code."""


class State(Enum):
    """AWS's own words for what an instance is at.

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
    def _missing_(cls, _: object) -> State:
        return cls.OTHER


LISTED_STATES = (State.PENDING, State.RUNNING, State.SHUTTING_DOWN, State.STOPPING, State.STOPPED)
"""Of machines that `list_owned` lists."""


@dataclass(frozen=True)
class Instance:
    """One instance, as AWS describes it."""

    id: str
    index: int
    """Its place among those of one launch."""
    state: State
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
        return self.state in (State.SHUTTING_DOWN, State.TERMINATED)

    @property
    def address(self) -> str:
        """Where its sshd is reached; empty while it has no address, or once it ends."""
        if self.is_ending:
            return ""
        return self.public_address if self.tags.get(PUBLIC) != "false" else self.private_address

    @property
    def why_ended(self) -> str:
        """One sentence; empty while it does not end, or where AWS does not say."""
        return WHY_ENDED.get(self.reason) or self.reason_words if self.is_ending else ""


def read(document: Mapping[str, Any]) -> Instance:
    """An instance of an answer. What is missing counts as not said."""
    word = str(_inner(document, "State").get("Name") or "")
    reason, cpus = _inner(document, "StateReason"), _inner(document, "CpuOptions")
    counted = cpus.get("CoreCount") and cpus.get("ThreadsPerCore")
    return Instance(
        id=str(document.get("InstanceId")),
        index=int(document.get("AmiLaunchIndex") or 0),
        state=State(word),
        state_word=word,
        reason=str(reason.get("Code") or ""),
        reason_words=str(reason.get("Message") or document.get("StateTransitionReason") or ""),
        public_address=str(document.get("PublicIpAddress") or ""),
        private_address=str(document.get("PrivateIpAddress") or ""),
        zone=str(_inner(document, "Placement").get("AvailabilityZone") or ""),
        type=str(document.get("InstanceType") or ""),
        lifecycle=str(document.get("InstanceLifecycle") or ""),
        spot_request=str(document.get("SpotInstanceRequestId") or ""),
        vcpus=int(cpus["CoreCount"]) * int(cpus["ThreadsPerCore"]) if counted else None,
        tags=tags_of(document),
    )


def instances_of(reservations: Sequence[Mapping[str, Any]]) -> list[Instance]:
    """The machines of DescribeInstances' answer."""
    return [read(one) for reservation in reservations for one in reservation.get("Instances") or []]


class RequestState(Enum):
    OPEN = "open"
    ACTIVE = "active"
    OTHER = ""
    """Closed, cancelled or failed: it does not count."""

    @classmethod
    def _missing_(cls, _: object) -> RequestState:
        return cls.OTHER


@dataclass(frozen=True)
class SpotRequest:
    """One spot request, as AWS describes it. One that is open may still start a machine; one that is active may count
    against the quota after its machine has ended."""

    id: str
    state: RequestState
    type: str
    instance: str
    """The id of its machine; empty before there is one."""
    created: float
    """UTC seconds; 0 where AWS does not say."""
    tags: Mapping[str, str]

    @property
    def counts(self) -> bool:
        return self.state is not RequestState.OTHER


def read_request(document: Mapping[str, Any]) -> SpotRequest:
    created = document.get("CreateTime")
    return SpotRequest(
        id=str(document.get("SpotInstanceRequestId")),
        state=RequestState(document.get("State")),
        type=str(_inner(document, "LaunchSpecification").get("InstanceType") or ""),
        instance=str(document.get("InstanceId") or ""),
        created=created.timestamp() if isinstance(created, datetime) else 0.0,
        tags=tags_of(document),
    )


# Our tags.


def tags_for(intent: Intent, *, host_key: str, user: str, price: float, public: bool) -> dict[str, str]:
    """What every resource of a cluster carries. `price`: $/h of one machine."""
    return {
        "Name": intent.mark("").rstrip("-"),
        MANAGED: "true",
        OWNER: intent.owner,
        CLUSTER: intent.cluster,
        TOKEN: intent.token,
        HOST_KEY: host_key,
        USER: user,
        PRICE: f"{price:.6g}",
        END: str(int(intent.boot_deadline)),
        PUBLIC: "true" if public else "false",
    }


def tag_specifications(tags: Mapping[str, str], *kinds: str) -> list[dict[str, Any]]:
    """TagSpecifications of a call that creates resources of these kinds of AWS's."""
    return [{"ResourceType": kind, "Tags": tag_list(tags)} for kind in kinds]


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as AWS writes them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tags_of(document: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a resource that AWS describes."""
    return {str(one.get("Key")): str(one.get("Value")) for one in document.get("Tags") or []}


def owner_filters(owner: str, *further: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Filters that find everything of one owner."""
    return [{"Name": f"tag:{OWNER}", "Values": [owner]}, *(dict(one) for one in further)]


def mark(tags: Mapping[str, str], part: int | str) -> str:
    """The name of one resource, by its tags; empty where they are not ours."""
    if tags.get(MANAGED) != "true" or not tags.get(OWNER) or not tags.get(CLUSTER):
        return ""
    return f"gpuops-{tags[OWNER]}-{tags[CLUSTER]}-{part}"


def cluster_of(name: str) -> tuple[str, str]:
    """Owner and cluster of a mark."""
    _, owner, rest = name.split("-", 2)
    return owner, rest.rpartition("-")[0]


# Our resources.


def resource(
    instance: Instance,
    region: str,
    home: Path,
    account: Mapping[str, str],
    *,
    known: Mapping[str, Any] | None = None,
    name: str = "",
) -> Resource:
    """A machine. `known`: its `Resource.data` of before; `name`: its mark, where that is known."""
    before, tags = known or {}, instance.tags
    state, phase = standing(instance)
    address, why = instance.address, instance.why_ended
    data: dict[str, Any] = {
        "connection": "ssh",
        "ssh_folder": str(home / "ssh"),
        "token": f"{tags[TOKEN]}-{instance.index}" if tags.get(TOKEN) else str(before.get("token") or ""),
        "revives": True,
        "boot_watch": WATCH,
        "scratch": SCRATCH,
        "throwaway_key": before.get("throwaway_key", True),
        "notices": dict(SPOT_NOTICES),
        "env": dict(ENV),
        "account": dict(account),
        "zone": instance.zone,
        "type": instance.type,
        "market": "spot" if instance.lifecycle == "spot" else "on-demand",
        "spot_request": instance.spot_request or str(before.get("spot_request") or ""),
        "phase": phase,
        "hopeless": (why or "AWS is ending it") if instance.is_ending else "",
        "reclaimed": instance.reason.startswith(OF_AWS),
        "by": "AWS",
        "why_ended": why,
    }
    host_key = tags.get(HOST_KEY) or ""
    if address and host_key:
        data["target"] = {
            "host": address,
            "port": 22,
            "user": tags.get(USER) or "ubuntu",
            "identities": [str(home / "ssh" / "id_ed25519")],
            "identities_only": True,
            "host_keys": [host_key],
        }
    return Resource(
        kind="machine",
        id=instance.id,
        region=region,
        name=name or mark(tags, instance.index),
        bills=True,
        state=state,
        address=address,
        port=22 if address else 0,
        private_address=instance.private_address,
        per_hour=0.0 if instance.is_ending else _number(tags.get(PRICE)),
        data=data,
    )


def standing(instance: Instance) -> tuple[str, str]:
    """Our state, and what it is at while it is not ready."""
    known = {
        State.PENDING: ("starting", "AWS is starting it"),
        State.RUNNING: ("running", ""),
        State.SHUTTING_DOWN: ("leaving", "AWS shuts it down"),
        State.TERMINATED: ("ended", ""),
    }
    return known.get(instance.state) or ("unknown", f"AWS calls it {instance.state_word or 'nothing at all'}")


def group_resource(
    id_: str, tags: Mapping[str, str], region: str, account: Mapping[str, str], name: str = ""
) -> Resource:
    """A security group. It costs nothing."""
    return _plain(GROUP, id_, tags, region, account, name)


def request_resource(request: SpotRequest, region: str, account: Mapping[str, str]) -> Resource:
    """A spot request whose machine has ended: it costs nothing, and may still count against the quota."""
    return _plain(SPOT_REQUEST, request.id, request.tags, region, account)


def volume_resource(document: Mapping[str, Any], region: str, account: Mapping[str, str]) -> Resource:
    """A disk that its machine has left behind: it is still billed."""
    price = float(document.get("Size") or 0) * DISK_MONTHLY / HOURS_PER_MONTH
    plain = _plain(VOLUME, str(document["VolumeId"]), tags_of(document), region, account)
    return dataclasses.replace(plain, bills=True, per_hour=round(price, 6))


def interface_resource(document: Mapping[str, Any], region: str, account: Mapping[str, str]) -> Resource:
    """A network interface that its machine has left behind: it costs nothing, and its security group cannot go."""
    tags = tags_of({"Tags": document.get("TagSet")})
    return _plain(INTERFACE, str(document["NetworkInterfaceId"]), tags, region, account)


def _plain(
    kind: str, id_: str, tags: Mapping[str, str], region: str, account: Mapping[str, str], name: str = ""
) -> Resource:
    part = MARK_PARTS[kind]
    token = {"token": f"{tags[TOKEN]}-{part}"} if tags.get(TOKEN) else {}
    return Resource(
        kind=kind,
        id=id_,
        region=region,
        name=name or mark(tags, part),
        bills=False,
        state="running",
        data={**token, "account": dict(account)},
    )


def account_data(who: Identity | None, region: str, before: Any = None) -> dict[str, str]:
    """What a resource keeps of whose it is; where AWS does not say it now, what it kept `before`."""
    known = str(before.get("id") or "") if isinstance(before, Mapping) else ""
    return {"id": who.account if who else known, "profile": split_region(region)[1]}


def _inner(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return document.get(name) or {}


def _number(value: str | None) -> float:
    try:
        return float(value or 0.0)
    except ValueError:
        return 0.0
