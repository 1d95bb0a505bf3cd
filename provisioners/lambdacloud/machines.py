"""Lambda's instances as our `Resource`, by their tags; what tells a secret (`jupyter_token`) is not even read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuops.core.models import MACHINE, Resource, ResourceState
from provisioners.kit.documents import Document, inner, objects, price
from provisioners.kit.ssh_machine import Login, ssh_data

SSH_PORT = 22
USER = "ubuntu"
NAME, TOKEN, HOST_KEY = "gpuops:name", "gpuops:token", "gpuops:host-key"
"""Our tags. The name is the instance's own, too, which its owner may change."""
NODE_ENV = {"NCCL_NET": "Socket"}
"""On-demand machines have no InfiniBand between them."""
TERMINATING = "terminating"
ENDING = "Lambda is ending it"
RECLAIMED = "Lambda took it back"


def instance_name(instance: Document) -> str:
    return tags_of(instance).get(NAME) or str(instance.get("name") or "")


def tags_of(instance: Document) -> dict[str, str]:
    return {str(tag.get("key")): str(tag.get("value")) for tag in objects(instance, "tags")}


def machine_resource(
    instance: Document, home: Path, account: Mapping[str, str], previous: Resource | None = None
) -> Resource:
    """An instance as Lambda tells it now. `previous`: the same as the ledger knows it.

    It has an address minutes before Lambda calls it active, and may be used by then: so it counts as running.
    """
    kept: Mapping[str, Any] = previous.data if previous else {}
    tags, address, status = tags_of(instance), str(instance.get("ip") or ""), str(instance.get("status") or "")
    host_key = tags.get(HOST_KEY) or str(kept.get("host_public") or "")
    state, phase, hopeless = _standing(status, address)
    per_hour = price(inner(instance, "instance_type").get("price_cents_per_hour")) / 100
    return Resource(
        kind=MACHINE,
        id=str(instance["id"]),
        region=previous.region if previous else str(inner(instance, "region").get("name") or ""),
        name=previous.name if previous else instance_name(instance),
        bills=True,
        state=state,
        address=address,
        port=SSH_PORT if address else 0,
        private_address=str(instance.get("private_ip") or ""),
        per_hour=0.0 if state == ResourceState.ENDED else per_hour or (previous.per_hour if previous else 0.0),
        data=ssh_data(
            home,
            Login(USER, address, SSH_PORT, host_key),
            kept,
            token=tags.get(TOKEN, ""),
            account=account,
            phase=phase,
            hopeless=hopeless,
            reclaimed=status == "preempted",
            by="Lambda",
            why_ended=RECLAIMED if status == "preempted" else "",
            env=dict(NODE_ENV),
            host_public=host_key,
            status=status,
            type=str(inner(instance, "instance_type").get("name") or kept.get("type") or ""),
        ),
    )


def _standing(status: str, address: str) -> tuple[ResourceState, str, str]:
    """State, what it waits for, why it never gets ready. What is on its way out bills until it is gone, for all that
    Lambda says."""
    if status == "terminated":
        return ResourceState.ENDED, "", ""
    if status in (TERMINATING, "preempted"):
        return ResourceState.UNKNOWN, "", ENDING if status == TERMINATING else RECLAIMED
    if status in ("booting", "active", "unhealthy"):
        phase = "Lambda calls it unhealthy" if status == "unhealthy" else "Lambda is starting it"
        return (ResourceState.RUNNING if address else ResourceState.STARTING), phase, ""
    return ResourceState.UNKNOWN, f"Lambda calls it {status or 'nothing at all'}", ""
