"""Where a pod's network volume lies, by every name that its user may have for it."""

from __future__ import annotations

from typing import Any

import pytest

from provisioners.runpod import launch, machines

MOUNTS = {"network": [{"volumeId": "vol1", "path": "/workspace"}]}


@pytest.mark.parametrize(
    ("pod", "known", "expected"),
    [
        ({"mounts": MOUNTS, "env": {launch.VOLUME: "data"}}, {}, {"vol1": "/workspace", "data": "/workspace"}),
        ({"mounts": MOUNTS, "env": {}}, {}, {"vol1": "/workspace"}),
        ({"mounts": None}, {"mounts": {"data": "/workspace"}}, {"data": "/workspace"}),
        ({}, {}, {}),
        ({"mounts": {"network": True}}, {}, {}),
        ({"mounts": {"network": [None, "x"]}}, {}, {}),
    ],
)
def test_a_volume_is_found_by_name_and_id(pod: dict[str, Any], known: dict[str, Any], expected: dict[str, str]) -> None:
    made = machines.parse_pod({"id": "p1", "status": "RUNNING", **pod}, kept=known)
    assert made.data["mounts"] == expected
