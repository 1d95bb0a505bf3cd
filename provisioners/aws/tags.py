"""Our mark on everything at AWS: tags, given in the very call that creates it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.core.models import Intent

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
