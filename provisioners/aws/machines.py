"""Everything of ours at AWS as a `Resource`, which is what the rest of gpuops knows of it. Pure.

A resource is made of what EC2 says now (`ec2`), of its tags, and of what the ledger has kept of it from before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from gpuops.core.models import MACHINE as MACHINE
from gpuops.core.models import Resource, ResourceState
from provisioners.aws import tags
from provisioners.aws.account import Identity
from provisioners.aws.api import split_region
from provisioners.aws.boot_script import WATCH
from provisioners.aws.ec2 import Instance, InstanceState, NetworkInterface, SecurityGroup, SpotRequest, Volume
from provisioners.aws.pricing import DISK_MONTHLY, HOURS_PER_MONTH
from provisioners.kit import ssh_machine
from provisioners.kit.account import kept_account
from provisioners.kit.documents import price
from provisioners.kit.ssh_machine import Login, Machine

GROUP = "group"
SPOT_REQUEST = "spot-request"
VOLUME = "volume"
INTERFACE = "interface"
NAME_PARTS = {GROUP: "group", SPOT_REQUEST: "spot", VOLUME: "volume", INTERFACE: "interface"}
"""The last part of a resource's name, by its kind; a machine's is its index."""

SSH_PORT = 22
SPOT_NOTICES = {"kind": "ec2", "url": "http://169.254.169.254"}
NODE_ENV = {"NCCL_NET": "Socket"}
"""AWS's image brings NCCL's plug-in for EFA, which machines here lack: it falls back noisily (aws-ofi-nccl #174)."""
SCRATCH = "/opt/dlami/nvme"
"""Where the Deep Learning AMI mounts local NVMe disks, on machines that have any (AWS's release notes of the image)."""
PREEMPTED = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
REASON_OF_AWS = "Server."
"""The prefix of the reasons that lie with AWS: a machine that ended for one can be replaced."""
END_REASONS = {
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
"""Why a machine has ended, for people, by its StateReason's code."""
STANDINGS = {
    InstanceState.PENDING: (ResourceState.STARTING, "AWS is starting it"),
    InstanceState.RUNNING: (ResourceState.RUNNING, ""),
    InstanceState.SHUTTING_DOWN: (ResourceState.LEAVING, "AWS shuts it down"),
    InstanceState.TERMINATED: (ResourceState.ENDED, ""),
}
"""By AWS's state: `Resource.state`, and what a machine waits for while it is not ready."""


def machine_resource(
    instance: Instance, region: str, home: Path, account: Mapping[str, str], previous: Resource | None = None
) -> Resource:
    """A machine. `account`: as by `account_data`; `previous`: the same machine as the ledger knows it."""
    kept = previous.data if previous else {}
    state, phase = STANDINGS.get(instance.state) or (
        ResourceState.UNKNOWN,
        f"AWS calls it {instance.state_word or 'nothing at all'}",
    )
    why_ended, user = explain_end(instance), instance.tags.get(tags.USER) or "ubuntu"
    machine = Machine(
        id=instance.id,
        name=tags.resource_name(instance.tags, instance.index),
        region=region,
        state=state,
        login=Login(user, instance.address, SSH_PORT, instance.tags.get(tags.HOST_KEY, "")),
        token=_token(instance.tags, instance.index),
        per_hour=price(instance.tags.get(tags.PRICE)),
        private_address=instance.private_address,
        data={
            "phase": phase,
            "hopeless": (why_ended or "AWS is ending it") if instance.is_ending else "",
            "boot_watch": WATCH,
            "scratch": SCRATCH,
            "notices": dict(SPOT_NOTICES),
            "env": dict(NODE_ENV),
            "zone": instance.zone,
            "type": instance.type,
            "market": "spot" if instance.lifecycle == "spot" else "on-demand",
            "spot_request": instance.spot_request or str(kept.get("spot_request") or ""),
            "reclaimed": instance.reason.startswith(REASON_OF_AWS),
            "by": "AWS",
            "why_ended": why_ended,
        },
    )
    resource = ssh_machine.machine_resource(machine, home, account, previous)
    return dataclasses.replace(resource, per_hour=0.0) if instance.is_ending else resource


def explain_end(instance: Instance) -> str:
    """Why it ends, in one sentence; empty while it does not end, or where AWS does not say."""
    return END_REASONS.get(instance.reason) or instance.reason_words if instance.is_ending else ""


def group_resource(
    group: SecurityGroup, region: str, account: Mapping[str, str], previous: Resource | None = None
) -> Resource:
    """A security group. It costs nothing."""
    resource = _free_resource(GROUP, group.id, group.tags, region, account)
    return dataclasses.replace(resource, name=previous.name) if previous and previous.name else resource


def request_resource(request: SpotRequest, region: str, account: Mapping[str, str]) -> Resource:
    """A spot request whose machine has ended: it costs nothing, and may still count against the quota."""
    return _free_resource(SPOT_REQUEST, request.id, request.tags, region, account)


def volume_resource(volume: Volume, region: str, account: Mapping[str, str]) -> Resource:
    """A disk that its machine has left behind: it is still billed."""
    per_hour = round(volume.size_gb * DISK_MONTHLY / HOURS_PER_MONTH, 6)
    resource = _free_resource(VOLUME, volume.id, volume.tags, region, account)
    return dataclasses.replace(resource, bills=True, per_hour=per_hour)


def interface_resource(interface: NetworkInterface, region: str, account: Mapping[str, str]) -> Resource:
    """A network interface that its machine has left behind: it costs nothing, and its security group cannot go."""
    return _free_resource(INTERFACE, interface.id, interface.tags, region, account)


def _free_resource(
    kind: str, id_: str, own_tags: Mapping[str, str], region: str, account: Mapping[str, str]
) -> Resource:
    """A resource that costs nothing and has no address."""
    part = NAME_PARTS[kind]
    token = _token(own_tags, part)
    return Resource(
        kind=kind,
        id=id_,
        region=region,
        name=tags.resource_name(own_tags, part),
        bills=False,
        state=ResourceState.RUNNING,
        data={**({"token": token} if token else {}), "account": dict(account)},
    )


def _token(own_tags: Mapping[str, str], part: int | str) -> str:
    return f"{own_tags[tags.TOKEN]}-{part}" if own_tags.get(tags.TOKEN) else ""


def account_data(identity: Identity | None, region: str, previous: Resource | None = None) -> dict[str, str]:
    """What a resource keeps of the account it is in; where AWS does not say it now, what `previous` has kept."""
    kept = kept_account_id(previous) if previous else ""
    return {"id": identity.account if identity else kept, "profile": split_region(region)[1]}


def kept_account_id(resource: Resource) -> str:
    """The number of the account that a resource was made in; empty where that was not known."""
    return str(kept_account(resource).get("id") or "")
