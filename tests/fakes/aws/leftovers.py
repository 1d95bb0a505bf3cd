"""What is still there of gpuops's: everything tagged so, of any kind, in any region."""

from __future__ import annotations

from typing import Any

from tests.fakes.aws.world import World

MARK = "gpuops:managed"


def tagged(world: World) -> list[str]:
    found = [str(one) for one in world.living() if MARK in one.tags]
    found += [
        f"{one.region}: spot request {one.id} ({one.state})"
        for one in world.spot_requests.values()
        if MARK in one.tags and one.state in ("open", "active")
    ]
    found += [f"{region}: security group {one}" for _, region, _, one, group in world.withheld if _marked(group)]
    attached = {disk.volume_id for one in world.living() for _, disk in one.moto.get_block_device_mapping}
    for region, backend in world.moto.regions():
        found += [
            f"{region}: security group {one.id} ({one.name})"
            for row in backend.groups.values()
            for one in row.values()
            if _marked(one)
        ]
        found += [
            f"{region}: volume {key}" for key, one in backend.volumes.items() if key not in attached and _marked(one)
        ]
        found += [
            f"{region}: network interface {key}"
            for key, one in backend.enis.items()
            if _marked(one) and not (one.instance and world.instances[one.instance.id].lives)
        ]
        found += [f"{region}: launch template {key}" for key, one in backend.launch_templates.items() if _marked(one)]
    return found


def _marked(one: Any) -> bool:
    return any(tag["key"] == MARK for tag in one.get_tags())
