"""Instances as Vast.ai describes them, and as our `Resource`. Pure. What an answer lacks counts as not said."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuops.core.format import one_line
from gpuops.core.models import MACHINE, Resource, ResourceState
from provisioners.kit import boot_watch
from provisioners.kit.documents import Document, entries, inner, number, objects
from provisioners.kit.ssh_machine import Login, ssh_data
from provisioners.vast.offers import REGION

NOT_STARTED = re.compile(r"OCI runtime create failed|failed to create task", re.IGNORECASE)
"""Its machine's fault: the image's command is not ours to choose. It stays `created` (dstack 511c318c8)."""
NEVER_PULLED = re.compile(
    r"manifest unknown|manifest for \S+ not found|no matching manifest|pull access denied|repository does not exist|"
    r"invalid reference format|unauthorized",
    re.IGNORECASE,
)
NEVER_RUN = ("exited", "unknown", "offline")
"""What does not become `running` by itself (Vast.ai's description of its API)."""
PHASES = {"": "getting a machine", "created": "making its container", "loading": "pulling its image"}


@dataclass(frozen=True)
class Instance:
    id: str
    label: str = ""
    status: str = ""
    """`actual_status`; empty while there is no machine yet."""
    is_stopped: bool = False
    """Vast.ai has stopped it, and means to."""
    is_bid: bool = False
    message: str = ""
    direct: tuple[str, int] = ("", 0)
    """Where its own port is; ("", 0) where it has none."""
    proxy: tuple[str, int] = ("", 0)
    """Where Vast.ai's proxy passes bytes on to the same sshd."""
    env: Mapping[str, str] = field(default_factory=dict)
    gpu_hourly: float = 0.0
    disk_hourly: float = 0.0
    place: str = ""
    machine: str = ""
    ends: float = 0.0
    """When its contract is over, and Vast.ai ends it, UTC seconds; 0: not known."""


def parse_instance(document: Document) -> Instance:
    """An instance of an answer that has an `id`."""
    states = {document.get(name) for name in ("cur_state", "intended_status", "next_state")}
    mapped = objects(inner(document, "ports"), "22/tcp")
    host = str(document.get("public_ipaddr") or "").strip()
    port = int(number(mapped[0].get("HostPort"))) if mapped else 0
    proxy = str(document.get("ssh_host") or ""), int(number(document.get("ssh_port")))
    pairs = [pair for pair in entries(document, "extra_env") if isinstance(pair, list) and len(pair) == 2]
    return Instance(
        id=str(document["id"]),
        label=str(document.get("label") or ""),
        status=str(document.get("actual_status") or ""),
        is_stopped=states == {"stopped"},
        is_bid=bool(document.get("is_bid")),
        message=one_line(str(document.get("status_msg") or ""), 200),
        direct=(host, port) if port and _is_reachable(host) else ("", 0),
        proxy=proxy if all(proxy) else ("", 0),
        env={str(name): str(value) for name, value in pairs},
        gpu_hourly=number(document.get("dph_base")),
        disk_hourly=max(number(document.get("dph_total")) - number(document.get("dph_base")), 0.0),
        place=str(document.get("geolocation") or ""),
        machine=str(document.get("machine_id") or ""),
        ends=number(document.get("end_date")),
    )


def _is_reachable(host: str) -> bool:
    """Not an address behind a carrier's translation (RFC 6598)."""
    try:
        return ipaddress.ip_address(host) not in ipaddress.ip_network("100.64.0.0/10")
    except ValueError:
        return bool(host)


def _standing(one: Instance) -> tuple[ResourceState, dict[str, Any]]:
    """What its state means for us."""
    if one.is_stopped and one.is_bid:
        why = "Vast.ai has stopped it: somebody pays more for its GPUs"
        return ResourceState.UNKNOWN, {"reclaimed": True, "by": "Vast.ai", "why_ended": why}
    if one.is_stopped or one.status in NEVER_RUN:
        word = "stopped" if one.is_stopped else one.status
        why = f"Vast.ai calls it {word}" + (f": {one.message}" if one.message else "")
        return ResourceState.UNKNOWN, {"hopeless": why, "stopped": True}
    if one.status in ("created", "loading") and NOT_STARTED.search(one.message):
        why = f"its machine cannot start its container: {one.message}"
        return ResourceState.UNKNOWN, {"hopeless": why, "stopped": True}
    if one.status in ("created", "loading") and NEVER_PULLED.search(one.message):
        return ResourceState.UNKNOWN, {"hopeless": f"its image cannot be pulled: {one.message}"}
    if one.status == "running":
        if one.direct[0] or one.proxy[0]:
            return ResourceState.RUNNING, {}
        return ResourceState.STARTING, {"phase": "waiting for its SSH port"}
    known = one.status in PHASES
    state = ResourceState.STARTING if known else ResourceState.UNKNOWN
    return state, {"phase": PHASES[one.status] if known else f"Vast.ai calls it {one.status}"}


def machine(one: Instance, kept: Resource | None, home: Path, account: Mapping[str, str], by_proxy: bool) -> Resource:
    """An instance as it is now. `kept`: as the ledger knows it; `by_proxy`: by which of its two ways it is reached."""
    state, now = _standing(one)
    before = kept.data if kept else {}
    host_key = one.env.get(boot_watch.HOST_PUBLIC) or str(before.get("host_public") or "")
    host, port = (one.proxy if by_proxy else one.direct) if state is ResourceState.RUNNING else ("", 0)
    login, token = Login("root", host, port, host_key), one.env.get(boot_watch.TOKEN, "")
    more: dict[str, Any] = {"stopped": False, **_own_data(one, host_key, by_proxy), **now}
    hourly = one.disk_hourly + (0.0 if one.is_stopped else one.gpu_hourly)
    return Resource(
        kind=MACHINE,
        id=one.id,
        region=REGION,
        name=one.label or (kept.name if kept else ""),
        bills=True,
        state=state,
        address=host,
        port=port,
        per_hour=hourly or (kept.per_hour if kept else 0.0),
        data=ssh_data(home, login, before, token=token, account=account, boot_watch=boot_watch.FOLDER, **more),
    )


def _own_data(one: Instance, host_key: str, by_proxy: bool) -> dict[str, Any]:
    return {
        "host_public": host_key,
        "status": one.status,
        "center": one.place,
        "machine": one.machine,
        "proxy": by_proxy,
        **({"ends": one.ends} if one.ends else {}),
    }
