"""Lambda's instances by their tags; what tells a secret (`jupyter_token`) is not even read. Pure."""

from __future__ import annotations

from gpuops.core.models import ResourceState
from provisioners.kit.documents import Document, inner, objects, price
from provisioners.kit.ssh_machine import Login, Machine

USER = "ubuntu"
NAME, TOKEN, HOST_KEY = "gpuops:name", "gpuops:token", "gpuops:host-key"
"""Our tags. The name is the instance's own, too, which its owner may change."""
NODE_ENV = {"NCCL_NET": "Socket"}
"""On-demand machines have no InfiniBand between them."""
TERMINATING = "terminating"
ENDING = "Lambda is ending it"
RECLAIMED = "Lambda took it back"


def parse_machine(instance: Document) -> Machine:
    """An instance of an answer that has an `id`.

    It has an address minutes before Lambda calls it active, and may be used by then: so it counts as running.
    """
    tags = {str(tag.get("key")): str(tag.get("value")) for tag in objects(instance, "tags")}
    address, status = str(instance.get("ip") or ""), str(instance.get("status") or "")
    kind = inner(instance, "instance_type")
    state, phase, hopeless = _standing(status, address)
    return Machine(
        id=str(instance["id"]),
        name=tags.get(NAME) or str(instance.get("name") or ""),
        region=str(inner(instance, "region").get("name") or ""),
        state=state,
        login=Login(USER, address, 22, tags.get(HOST_KEY, "")),
        token=tags.get(TOKEN, ""),
        per_hour=price(kind.get("price_cents_per_hour")) / 100,
        private_address=str(instance.get("private_ip") or ""),
        data={
            "phase": phase,
            "hopeless": hopeless,
            "reclaimed": status == "preempted",
            "by": "Lambda",
            "why_ended": RECLAIMED if status == "preempted" else "",
            "env": dict(NODE_ENV),
            "status": status,
            **({"type": str(kind["name"])} if kind.get("name") else {}),
        },
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
