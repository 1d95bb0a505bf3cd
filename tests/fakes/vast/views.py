"""Instances as the service tells them."""

from __future__ import annotations

from typing import Any

from tests.fakes.vast.records import Instance

PAGE = 25
OF_ASK = ("machine_id", "geolocation", "gpu_name", "gpu_ram", "num_gpus", "end_date", "gpu_frac", "verification")


def ports_of(one: Instance) -> list[dict[str, Any]]:
    """Ports that lead to an instance's machine from outside: the direct one, and the proxy's."""
    found = []
    if one.life.mapped:
        found.append({"public": one.direct_port, "private": 1 if one.life.blocked else 22})
    if one.life.proxied:
        found.append({"public": one.proxy_port, "private": 22})
    return found


def instance_view(one: Instance, now: float) -> dict[str, Any]:
    status = one.status(now)
    running = status == "running"
    wanted = "stopped" if one.stopped else "running"
    given = one.request.get("env") or {}
    ports = {"22/tcp": [{"HostIp": ip, "HostPort": str(one.direct_port)} for ip in ("0.0.0.0", "::")]}
    return {
        "id": one.number,
        "label": one.request.get("label"),
        "actual_status": status,
        "intended_status": wanted,
        "cur_state": wanted,
        "next_state": wanted,
        "status_msg": one.life.status_msg if status else None,
        "public_ipaddr": f" {one.body.address}\n" if status else None,
        "ports": ports if running and one.life.mapped else ({} if status == "loading" else None),
        "ssh_host": one.body.address,
        "ssh_port": one.proxy_port,
        "ssh_idx": "6",
        "image_uuid": one.request["image"],
        "image_runtype": one.request.get("runtype"),
        "extra_env": [[name, value] for name, value in given.items()],
        "onstart": one.request.get("onstart") or "",
        "start_date": one.created,
        "is_bid": one.bid is not None,
        "min_bid": one.ask.min_bid,
        "dph_base": one.gpu_per_hour,
        "dph_total": one.gpu_per_hour + one.disk_per_hour,
        "disk_space": float(one.request["disk"]),
        "storage_total_cost": one.disk_per_hour,
        **{name: one.ask.document[name] for name in OF_ASK},
    }
