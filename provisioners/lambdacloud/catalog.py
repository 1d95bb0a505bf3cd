"""Lambda's instance types, as it lists them. Pure."""

from __future__ import annotations

import re

from provisioners.kit.documents import Document, inner, objects, price
from provisioners.kit.instance_types import InstanceType

GPU = re.compile(r"(?:Tesla )?(.+?) \((\d+) GB ?(.*)\)")
"""`H100 (80 GB SXM5)`, which is all that Lambda tells of a GPU."""
ENDS = (
    "Lambda bills a machine until it is ended through its API, also one that is shut down: the guard on this computer "
    "does that, while it is on"
)
REGION_NOTES = {
    "us-south-1": [
        "Lambda's firewall does not work in us-south-1: every port of a machine there is open to the internet"
    ]
}
ARM_NOTE = "its processor is an ARM"


def parse_types(data: Document) -> list[InstanceType]:
    """The answer of `/instance-types`: by type, with the regions where it is listed as free: no promise, a launch is
    often refused seconds later."""
    return [_parse_type(inner(data, name), inner(inner(data, name), "instance_type")) for name in sorted(data)]


def _parse_type(entry: Document, kind: Document) -> InstanceType:
    named = str(kind.get("gpu_description") or "")
    match, name, specs = GPU.fullmatch(named), str(kind.get("name") or ""), inner(kind, "specs")
    gpus = int(price(specs.get("gpus")))
    is_arm = kind.get("architecture") == "arm64" or "gh200" in name  # older versions do not tell
    return InstanceType(
        type=name,
        gpus=gpus,
        gpu=(f"{match[1]} {match[3]}".strip() if match else named) if gpus else "",
        memory=int(match[2]) if match else 0,
        per_hour=price(kind.get("price_cents_per_hour")) / 100,
        regions=tuple(sorted(str(region["name"]) for region in objects(entry, "regions_with_capacity_available"))),
        vcpus=int(price(specs.get("vcpus"))),
        ram=int(price(specs.get("memory_gib"))),
        disk=int(price(specs.get("storage_gib"))),
        is_only_by_name=is_arm,
        notes=(ARM_NOTE,) if is_arm else (),
    )
