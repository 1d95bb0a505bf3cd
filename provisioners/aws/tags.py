"""Our tags at AWS: given in the very call that creates a thing, and enough to know it and its cluster again. Pure.

Every resource of ours also has a name, `gpuops-<owner>-<cluster>-<part>`: it is read from the tags, and the cluster
from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.core.models import Intent
from provisioners.aws.api import Document

MANAGED = "gpuops:managed"
OWNER = "gpuops:owner"
ANY_OWNER = "*"
"""Every owner, in a filter."""
CLUSTER = "gpuops:cluster"
TOKEN = "gpuops:token"
HOST_KEY = "gpuops:host-key"
USER = "gpuops:user"
PRICE = "gpuops:price"
END = "gpuops:end"
PUBLIC = "gpuops:public"


def build_tags(intent: Intent, *, host_key: str, user: str, price: float, public: bool) -> dict[str, str]:
    """The tags of every resource of a cluster. `price`: $/h of one machine."""
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


def parse_tags(entries: object) -> dict[str, str]:
    """The tags of a resource, from the list that AWS describes it with; empty where it has none."""
    listed = entries if isinstance(entries, list) else []
    return {str(entry.get("Key")): str(entry.get("Value")) for entry in listed}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as AWS writes them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tag_specifications(tags: Mapping[str, str], *resource_types: str) -> list[dict[str, Any]]:
    """TagSpecifications of a call that creates resources of these types."""
    return [{"ResourceType": resource_type, "Tags": tag_list(tags)} for resource_type in resource_types]


def owner_filters(owner: str, *further: Document) -> list[Document]:
    """Filters that find everything of one owner."""
    return [{"Name": f"tag:{OWNER}", "Values": [owner]}, *further]


def resource_name(tags: Mapping[str, str], part: int | str) -> str:
    """The name of one resource, by its tags; empty where they are not ours."""
    if tags.get(MANAGED) != "true" or not tags.get(OWNER) or not tags.get(CLUSTER):
        return ""
    return f"gpuops-{tags[OWNER]}-{tags[CLUSTER]}-{part}"


def cluster_of(name: str) -> tuple[str, str]:
    """Owner and cluster of a resource's name."""
    _, owner, cluster_and_part = name.split("-", 2)
    return owner, cluster_and_part.rpartition("-")[0]
