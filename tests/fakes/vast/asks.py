"""What can be rented, and which of it a search means."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.vast.records import Ask

TEMPLATE: Mapping[str, Any] = {
    "cluster_id": None, "compute_cap": 890, "cpu_arch": "amd64", "cpu_cores_effective": 16.0, "cpu_ram": 64000,
    "cuda_max_good": 12.9, "direct_port_count": 100, "disk_space": 900.0, "duration": 2_000_000.0,
    "driver_version": "575.57.08",
    "end_date": 1999999999.0, "external": None, "geolocation": "Sweden, SE", "gpu_arch": "nvidia", "gpu_frac": 1.0,
    "hosting_type": 1, "inet_down": 900.0, "inet_down_cost": 0.002, "inet_up": 800.0, "inet_up_cost": 0.002,
    "public_ipaddr": "203.0.113.7", "reliability": 0.998, "reliability2": 0.998, "static_ip": True,
    "storage_cost": 0.15, "verification": "verified", "vms_enabled": False,
}  # fmt: skip
STOCK: tuple[tuple[str, int, int, float, Mapping[str, Any]], ...] = (
    ("RTX 4090", 24564, 1, 0.35, {}),
    ("RTX 4090", 24564, 1, 0.31, {"hosting_type": 0, "geolocation": "Texas, US"}),
    ("RTX 4090", 24564, 1, 0.20, {"verification": "unverified", "hosting_type": 0}),
    ("RTX 4090", 24564, 1, 0.21, {"reliability": 0.91, "reliability2": 0.91}),
    ("RTX 4090", 24564, 1, 0.22, {"direct_port_count": 0}),
    ("RTX 4090", 24564, 1, 0.23, {"cuda_max_good": 12.2}),
    ("RTX 4090", 24564, 1, 0.24, {"disk_space": 20.0}),
    ("RTX 4090", 24564, 1, 0.25, {"inet_down": 40.0}),
    ("RTX 4090", 24564, 2, 0.66, {}),
    ("RTX 4090", 24564, 4, 1.40, {"geolocation": "Norway, NO"}),
    ("RTX A4000", 16376, 1, 0.12, {}),
    ("RTX A4000", 16376, 1, 0.13, {}),
    ("RTX A4000", 16376, 1, 0.14, {"geolocation": "Norway, NO"}),
    ("A10", 23028, 1, 0.19, {}),
    ("A10", 23028, 1, 0.10, {"duration": 600.0}),
    ("A100 SXM4", 40960, 8, 6.40, {"cluster_id": 7}),
    ("A100 PCIE", 81920, 1, 0.95, {}),
    ("H100 SXM", 81559, 1, 2.10, {}),
    ("H100 SXM", 81559, 8, 16.00, {}),
    ("H100 NVL", 95830, 1, 2.40, {}),
    ("RX 7900 XTX", 24560, 1, 0.11, {"gpu_arch": "amd"}),
)
"""Name, MB of each GPU, GPUs, $/h without its disk, and what is special."""
DEFAULTS = {"verified": {"eq": True}, "rentable": {"eq": True}, "rented": {"eq": False}, "external": {"eq": False}}
SETTINGS = ("order", "type", "limit", "allocated_storage")
OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "neq": operator.ne, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt,
    "lte": operator.le, "in": lambda value, given: value in given, "notin": lambda value, given: value not in given,
}  # fmt: skip


def stock() -> list[Ask]:
    """Everything, and no machine twice."""
    found = []
    for at, (name, memory, count, price, special) in enumerate(STOCK):
        own = {"gpu_name": name, "gpu_ram": memory, "num_gpus": count, "dph_base": price, "machine_id": 5000 + at}
        found.append(Ask(20_000_000 + at, {**TEMPLATE, **own, **special}, min_bid=round(price * 0.4, 4)))
    return found


def field(told: Mapping[str, Any], name: str) -> Any:
    """What a filter of that name is held against. Raises KeyError where there is none."""
    if name == "verified":
        return told["verification"] == "verified"
    if name == "datacenter":
        return told["hosting_type"] == 1
    if name == "external":
        return bool(told["external"])
    if name == "geolocation":
        return told["geolocation"].rpartition(", ")[2]
    return told[name]


def search(asks: list[Ask], body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Raises KeyError for a filter or an operator that there is not."""
    kind, storage = body.get("type", "on-demand"), float(body.get("allocated_storage", 8.0))
    filters = {**DEFAULTS, **{name: rule for name, rule in body.items() if name not in SETTINGS}}
    found = [
        told
        for told in (ask.told(kind, storage) for ask in asks)
        if all(
            field(told, name) is not None and OPERATORS[word](field(told, name), value)
            for name, rule in filters.items()
            for word, value in rule.items()
        )
    ]
    for name, direction in reversed(body.get("order", [["dph_total", "asc"]])):
        found.sort(key=lambda told: told[name], reverse=direction == "desc")
    return found[: body.get("limit", 64)]
