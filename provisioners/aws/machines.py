"""Our mark on everything at AWS: tags, given in the very call that creates it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuops.core.models import Intent, Resource
from provisioners.aws.account import Identity
from provisioners.aws.api import split
from provisioners.aws.boot_script import WATCH
from provisioners.aws.pricing import DISK_MONTHLY, MONTH_H

MANAGED = "gpuops:managed"
OWNER = "gpuops:owner"
CLUSTER = "gpuops:cluster"
TOKEN = "gpuops:token"
HOST_KEY = "gpuops:host-key"
USER = "gpuops:user"
PRICE = "gpuops:price"
END = "gpuops:end"
PUBLIC = "gpuops:public"
GROUP = "group"
"""The last part of a security group's mark."""


def told(intent: Intent, *, host_key: str, user: str, price: float, public: bool) -> dict[str, str]:
    """What every resource of a cluster carries, and all that is needed to know it again."""
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


def specifications(tags: Mapping[str, str], *kinds: str) -> list[dict[str, Any]]:
    """TagSpecifications of a call that creates resources of these kinds."""
    return [{"ResourceType": kind, "Tags": listed(tags)} for kind in kinds]


def listed(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as AWS writes them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def read(document: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a resource as AWS tells of it."""
    return {str(one.get("Key")): str(one.get("Value")) for one in document.get("Tags") or []}


def filters(owner: str, *further: Mapping[str, Any]) -> list[dict[str, Any]]:
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


NOTICES = {"kind": "ec2", "url": "http://169.254.169.254"}
ENV = {"NCCL_NET": "Socket"}
"""AWS's image brings NCCL's plug-in for EFA, which machines here lack: it falls back noisily (aws-ofi-nccl #174)."""
ALIVE = ("pending", "running", "shutting-down", "stopping", "stopped")
OPEN = ("open", "active")
"""States of a spot request that may still count."""
SPOT = "spot"
"""The last part of a spot request's mark."""
REQUEST = "spot-request"
VOLUME, CARD = "volume", "interface"
"""Kinds, and the last parts of their marks: both go with their machine, as a rule."""
FREE = {"Name": "status", "Values": ["available"]}
"""The filter for those that belong to no machine any more."""
RECLAIMED = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
THEIRS = "Server."
"""What a reason begins with that is AWS's own: a machine that went for it can be replaced."""
SCRATCH = "/opt/dlami/nvme"
"""Where the Deep Learning AMI mounts local NVMe disks, on machines that have any (AWS's release notes of the image)."""
WHY = {
    **dict.fromkeys(RECLAIMED, "AWS took it back: a spot machine, whose capacity others pay more for"),
    "Server.InsufficientInstanceCapacity": "AWS had no capacity for it after all",
    "Server.ScheduledStop": "AWS ended it for maintenance",
    "Server.InternalError": "AWS failed to start it",
    "Client.VolumeLimitExceeded": "the account may not have more disks in that region",
    "Client.InvalidSnapshot.NotFound": "its image's disk is not there",
    "Client.InternalError": "its disk could not be read: AWS says that this is an encrypted image's key, mostly",
    "Client.UserInitiatedShutdown": "somebody has ended it",
    "Client.InstanceInitiatedShutdown": "it has switched itself off",
}
"""StateReason's code, in a sentence."""


def resource(
    told: Mapping[str, Any],
    region: str,
    home: Path,
    account: Mapping[str, str],
    *,
    known: Mapping[str, Any] | None = None,
    name: str = "",
) -> Resource:
    """A machine. `known`: what `data` held of it before; `name`: its mark, where that is known."""
    before, marked = dict(known or {}), read(told)
    index = int(told.get("AmiLaunchIndex") or 0)
    state, phase = standing(told)
    reason = str((told.get("StateReason") or {}).get("Code") or "")
    leaving = str((told.get("State") or {}).get("Name")) in ("shutting-down", "terminated")
    why = (WHY.get(reason) or _said(told)) if leaving else ""
    token = f"{marked[TOKEN]}-{index}" if marked.get(TOKEN) else str(before.get("token") or "")
    host = _address(told, public=marked.get(PUBLIC) != "false") if not leaving else ""
    data: dict[str, Any] = {
        "connection": "ssh",
        "ssh_folder": str(home / "ssh"),
        "token": token,
        "revives": True,
        "boot_watch": WATCH,
        "scratch": SCRATCH,
        "throwaway_key": before.get("throwaway_key", True),
        "notices": dict(NOTICES),
        "env": dict(ENV),
        "account": dict(account),
        "zone": str((told.get("Placement") or {}).get("AvailabilityZone") or ""),
        "type": str(told.get("InstanceType") or ""),
        "market": "spot" if told.get("InstanceLifecycle") == "spot" else "on-demand",
        "spot_request": str(told.get("SpotInstanceRequestId") or before.get("spot_request") or ""),
        "phase": phase,
        "hopeless": (why or "AWS is ending it") if leaving else "",
        "reclaimed": reason.startswith(THEIRS),
        "by": "AWS",
        "why_ended": why,
    }
    key = marked.get(HOST_KEY) or ""
    if host and key:
        data["target"] = {
            "host": host,
            "port": 22,
            "user": marked.get(USER) or "ubuntu",
            "identities": [str(home / "ssh" / "id_ed25519")],
            "identities_only": True,
            "host_keys": [key],
        }
    return Resource(
        kind="machine",
        id=str(told["InstanceId"]),
        region=region,
        name=name or mark(marked, index),
        bills=True,
        state=state,
        address=host,
        port=22 if host else 0,
        private_address=str(told.get("PrivateIpAddress") or ""),
        per_hour=0.0 if leaving else _number(marked.get(PRICE)),
        data=data,
    )


def standing(told: Mapping[str, Any]) -> tuple[str, str]:
    """Our state, and what it is at while it is not ready. AWS bills no machine from `shutting-down` on, and none comes
    back from there; its security group cannot go before it has (AWS, "instance lifecycle")."""
    state = str((told.get("State") or {}).get("Name") or "")
    if state == "pending":
        return "starting", "AWS is starting it"
    if state == "running":
        return "running", ""
    if state == "shutting-down":
        return "leaving", "AWS shuts it down"
    if state == "terminated":
        return "ended", ""
    return "unknown", f"AWS calls it {state or 'nothing at all'}"


def group(told: Mapping[str, Any], region: str, account: Mapping[str, str], name: str = "") -> Resource:
    """A security group. It costs nothing."""
    return _plain("group", str(told["GroupId"]), told, region, account, name, GROUP)


def request(told: Mapping[str, Any], region: str, account: Mapping[str, str]) -> Resource:
    """A spot request whose machine is no more: it costs nothing, and may still count against the quota."""
    return _plain(REQUEST, str(told["SpotInstanceRequestId"]), told, region, account, "", SPOT)


def volume(told: Mapping[str, Any], region: str, account: Mapping[str, str]) -> Resource:
    """A disk that its machine has left behind: it costs on."""
    price = float(told.get("Size") or 0) * DISK_MONTHLY / MONTH_H
    plain = _plain(VOLUME, str(told["VolumeId"]), told, region, account, "", VOLUME)
    return dataclasses.replace(plain, bills=True, per_hour=round(price, 6))


def card(told: Mapping[str, Any], region: str, account: Mapping[str, str]) -> Resource:
    """A network interface that its machine has left behind: it costs nothing, and keeps its security group."""
    tagged = {"Tags": told.get("TagSet") or []}
    return _plain(CARD, str(told["NetworkInterfaceId"]), tagged, region, account, "", CARD)


def _plain(
    kind: str, id_: str, told: Mapping[str, Any], region: str, account: Mapping[str, str], name: str, part: str
) -> Resource:
    marked = read(told)
    token = {"token": f"{marked[TOKEN]}-{part}"} if marked.get(TOKEN) else {}
    return Resource(
        kind=kind,
        id=id_,
        region=region,
        name=name or mark(marked, part),
        bills=False,
        state="running",
        data={**token, "account": dict(account)},
    )


def all_of(reservations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The machines of DescribeInstances' answer."""
    return [one for reservation in reservations for one in reservation.get("Instances") or []]


def account(who: Identity | None, region: str, before: Any = None) -> dict[str, str]:
    """What a resource keeps of whose it is; where AWS does not say it now, what it kept `before`."""
    known = str(before.get("id") or "") if isinstance(before, Mapping) else ""
    return {"id": who.account if who else known, "profile": split(region)[1]}


def _address(told: Mapping[str, Any], *, public: bool) -> str:
    return str(told.get("PublicIpAddress" if public else "PrivateIpAddress") or "")


def _said(told: Mapping[str, Any]) -> str:
    return str((told.get("StateReason") or {}).get("Message") or told.get("StateTransitionReason") or "")


def _number(said: str | None) -> float:
    try:
        return float(said or 0.0)
    except ValueError:
        return 0.0
