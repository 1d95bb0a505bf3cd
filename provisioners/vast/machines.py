"""Instances as Vast.ai describes them. Pure. What an answer lacks counts as not said."""

from __future__ import annotations

import re
from typing import Any

from gpuops.core.format import one_line
from gpuops.core.models import ResourceState
from provisioners.kit import container_boot
from provisioners.kit.container_images import NEVER_PULLED
from provisioners.kit.documents import Document, entries, inner, number, objects
from provisioners.kit.ssh_machine import Login, Machine, is_behind_carrier

NOT_STARTED = re.compile(r"OCI runtime create failed|failed to create task", re.IGNORECASE)
"""Its machine's fault: the image's command is not ours to choose. It stays `created` (dstack 511c318c8)."""
NEVER_RUN = ("exited", "unknown", "offline")
"""What does not become `running` by itself (Vast.ai's description of its API)."""
PHASES = {"": "getting a machine", "created": "making its container", "loading": "pulling its image"}
Endpoint = tuple[str, int]


def endpoints(instance: Document) -> tuple[Endpoint, Endpoint]:
    """Where its own SSH port is, and where Vast.ai's proxy passes bytes on to the same sshd; ("", 0): nowhere."""
    host = str(instance.get("public_ipaddr") or "").strip()
    mapped = objects(inner(instance, "ports"), "22/tcp")
    port = int(number(mapped[0].get("HostPort"))) if mapped else 0
    proxy = str(instance.get("ssh_host") or ""), int(number(instance.get("ssh_port")))
    direct = (host, port) if host and port and not is_behind_carrier(host) else ("", 0)
    return direct, proxy if all(proxy) else ("", 0)


def parse_machine(instance: Document, *, by_proxy: bool) -> Machine:
    """An instance of an answer that has an `id`. `by_proxy`: by which of its two ways it is reached."""
    direct, proxy = endpoints(instance)
    state, now = _standing(instance, is_reachable=bool(direct[0] or proxy[0]))
    host, port = (proxy if by_proxy else direct) if state is ResourceState.RUNNING else ("", 0)
    pairs = [pair for pair in entries(instance, "extra_env") if isinstance(pair, list) and len(pair) == 2]
    env = {str(name): str(value) for name, value in pairs}
    gpus_hourly = number(instance.get("dph_base"))
    disk_hourly = max(number(instance.get("dph_total")) - gpus_hourly, 0.0)
    ends = number(instance.get("end_date"))
    return Machine(
        id=str(instance["id"]),
        name=str(instance.get("label") or ""),
        region="",  # Vast.ai lists an account's instances as one, wherever they are
        state=state,
        login=Login("root", host, port, env.get(container_boot.HOST_PUBLIC, "")),
        token=env.get(container_boot.TOKEN, ""),
        per_hour=disk_hourly + (0.0 if _is_stopped(instance) else gpus_hourly),
        data={
            "status": str(instance.get("actual_status") or ""),
            "center": str(instance.get("geolocation") or ""),
            "machine": str(instance.get("machine_id") or ""),
            "proxy": by_proxy,
            **({"ends": ends} if ends else {}),
            **now,
        },
    )


def _is_stopped(instance: Document) -> bool:
    """Vast.ai has stopped it, and means to."""
    return {instance.get(name) for name in ("cur_state", "intended_status", "next_state")} == {"stopped"}


def _standing(instance: Document, *, is_reachable: bool) -> tuple[ResourceState, dict[str, Any]]:
    """What its state means for us."""
    status = str(instance.get("actual_status") or "")  # none while there is no machine yet
    message = one_line(str(instance.get("status_msg") or ""), 200)
    if _is_stopped(instance) and instance.get("is_bid"):
        why = "Vast.ai has stopped it: somebody pays more for its GPUs"
        return ResourceState.UNKNOWN, {"reclaimed": True, "by": "Vast.ai", "why_ended": why}
    if _is_stopped(instance) or status in NEVER_RUN:
        word = "stopped" if _is_stopped(instance) else status
        why = f"Vast.ai calls it {word}" + (f": {message}" if message else "")
        return ResourceState.UNKNOWN, {"hopeless": why, "stopped": True}
    if status in ("created", "loading") and NOT_STARTED.search(message):
        return ResourceState.UNKNOWN, {
            "hopeless": f"its machine cannot start its container: {message}",
            "stopped": True,
        }
    if status in ("created", "loading") and NEVER_PULLED.search(message):
        return ResourceState.UNKNOWN, {"hopeless": f"its image cannot be pulled: {message}"}
    if status == "running":
        waits = {} if is_reachable else {"phase": "waiting for its SSH port"}
        return ResourceState.STARTING if waits else ResourceState.RUNNING, waits
    known = status in PHASES
    state = ResourceState.STARTING if known else ResourceState.UNKNOWN
    return state, {"phase": PHASES[status] if known else f"Vast.ai calls it {status}"}
