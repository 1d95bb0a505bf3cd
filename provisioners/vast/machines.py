"""Instances as Vast.ai describes them. Pure. What an answer lacks counts as not said."""

from __future__ import annotations

import re

from gpuops.core.format import one_line
from gpuops.core.models import ResourceState
from provisioners.kit import container_boot
from provisioners.kit.container_images import NEVER_PULLED
from provisioners.kit.documents import Document, entries, inner, number, objects
from provisioners.kit.error_table import because
from provisioners.kit.ssh_machine import Login, Machine, Standing, comes, endpoint, hopeless, reclaimed, unclear

NOT_STARTED = re.compile(r"OCI runtime create failed|failed to create task", re.IGNORECASE)
"""Its machine's fault: the image's command is not ours to choose. It stays `created` (dstack 511c318c8)."""
NEVER_RUN = ("exited", "unknown", "offline")
"""What does not become `running` by itself (Vast.ai's description of its API)."""
PHASES = {"": "getting a machine", "created": "making its container", "loading": "pulling its image"}


def parse_machine(instance: Document) -> Machine:
    """An instance of an answer that has an `id`."""
    mapped = objects(inner(instance, "ports"), "22/tcp")
    direct = endpoint(instance.get("public_ipaddr"), mapped[0].get("HostPort") if mapped else 0)
    proxy = endpoint(instance.get("ssh_host"), instance.get("ssh_port"))
    state, now = _standing(instance, is_reachable=bool(direct[0] or proxy[0]))
    host, port = direct if state is ResourceState.RUNNING else ("", 0)
    pairs = [pair for pair in entries(instance, "extra_env") if isinstance(pair, list) and len(pair) == 2]
    env = {str(name): str(value) for name, value in pairs}
    gpus_hourly = number(instance.get("dph_base"))
    disk_hourly = max(number(instance.get("dph_total")) - gpus_hourly, 0.0)
    ends = number(instance.get("end_date"))
    return Machine(
        id=str(instance["id"]),
        name=str(instance.get("label") or ""),
        region="vast",  # an account's instances are one list, wherever they are
        state=state,
        login=Login("root", host, port, env.get(container_boot.HOST_PUBLIC, "")),
        token=env.get(container_boot.TOKEN, ""),
        per_hour=disk_hourly + (0.0 if _is_stopped(instance) else gpus_hourly),
        proxy=proxy,
        data={
            "status": str(instance.get("actual_status") or ""),
            "center": str(instance.get("geolocation") or ""),
            "machine": str(instance.get("machine_id") or ""),
            **({"ends": ends} if ends else {}),
            **now,
        },
    )


def _is_stopped(instance: Document) -> bool:
    """Vast.ai has stopped it, and means to."""
    return {instance.get(name) for name in ("cur_state", "intended_status", "next_state")} == {"stopped"}


def _standing(instance: Document, *, is_reachable: bool) -> Standing:
    """What its state means for us."""
    status = str(instance.get("actual_status") or "")  # none while there is no machine yet
    message = one_line(str(instance.get("status_msg") or ""), 200)
    is_booting = status in ("created", "loading")
    if _is_stopped(instance) and instance.get("is_bid"):
        return reclaimed("Vast.ai", "Vast.ai has stopped it: somebody pays more for its GPUs")
    if _is_stopped(instance) or status in NEVER_RUN:
        word = "stopped" if _is_stopped(instance) else status
        return hopeless(f"Vast.ai calls it {word}{because(message)}", stopped=True)
    if is_booting and NOT_STARTED.search(message):
        return hopeless(f"its machine cannot start its container: {message}", stopped=True)
    if is_booting and NEVER_PULLED.search(message):
        return hopeless(f"its image cannot be pulled: {message}")
    if status == "running":
        return (ResourceState.RUNNING, {}) if is_reachable else comes("waiting for its SSH port")
    return comes(PHASES[status]) if status in PHASES else unclear(f"Vast.ai calls it {status}")
