"""What an instance is made of, and what its metadata service tells of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MISHAPS = ("", "fails", "hangs", "hangs early", "dead")
"""What can go wrong at a boot. fails: user data ends after bootcmd, without a user or a key. hangs: a stage hangs when
sshd is there. hangs early: the one before does, after bootcmd. dead: the kernel never gets as far as a system."""
META = "/latest/meta-data"
NOTICES = {"instance-action": f"{META}/spot/instance-action", "rebalance": f"{META}/events/recommendations/rebalance"}


@dataclass(frozen=True)
class Order:
    id: str
    region: str = "us-east-1"
    zone: str = "us-east-1a"
    type: str = "g5.12xlarge"
    market: str = "on-demand"
    launch_index: int = 0
    user_data: str = ""
    """As it was before it was encoded."""
    torch: bool = True
    """An image for training, with /opt/pytorch."""
    nvme: bool = False
    """Instance storage, where such images mount it."""
    mishap: str = ""
    user: str = "ubuntu"
    ami: str = "ami-0123456789abcdef0"
    account: str = "123456789012"


def hostname(address: str) -> str:
    return f"ip-{address.replace('.', '-')}"


def metadata(order: Order, address: str, public: str, notices: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Path -> text."""
    name = f"{hostname(address)}.ec2.internal"
    identity = {
        "accountId": order.account, "availabilityZone": order.zone, "imageId": order.ami, "instanceId": order.id,
        "instanceType": order.type, "privateIp": address, "region": order.region,
    }  # fmt: skip
    told = {
        f"{META}/ami-id": order.ami,
        f"{META}/ami-launch-index": str(order.launch_index),
        f"{META}/hostname": name,
        f"{META}/instance-id": order.id,
        f"{META}/instance-life-cycle": order.market,
        f"{META}/instance-type": order.type,
        f"{META}/local-hostname": name,
        f"{META}/local-ipv4": address,
        f"{META}/placement/availability-zone": order.zone,
        f"{META}/placement/region": order.region,
        f"{META}/public-ipv4": public,
        "/latest/dynamic/instance-identity/document": json.dumps(identity),
    }
    if order.user_data:
        told["/latest/user-data"] = order.user_data
    for kind, document in notices.items():
        told[NOTICES[kind]] = json.dumps(document)
        if kind == "instance-action" and document.get("action") == "terminate":
            told[f"{META}/spot/termination-time"] = str(document.get("time", ""))
    return told
