"""Where a pod's network volume lies, by every name that its user may have for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioners.runpod import machines

MOUNTS = {"network": [{"volumeId": "vol1", "path": "/workspace"}]}


@pytest.mark.parametrize(
    ("pod", "known", "expected"),
    [
        ({"mounts": MOUNTS, "env": {machines.VOLUME: "data"}}, {}, {"vol1": "/workspace", "data": "/workspace"}),
        ({"mounts": MOUNTS, "env": {}}, {}, {"vol1": "/workspace"}),
        ({"mounts": None}, {"mounts": {"data": "/workspace"}}, {"data": "/workspace"}),
        ({}, {}, {}),
    ],
)
def test_a_volume_is_found_by_name_and_id(pod: dict[str, Any], known: dict[str, Any], expected: dict[str, str]) -> None:
    made = machines.resource(
        machines.read({"id": "p1", "status": "RUNNING", **pod}), "gpuops-me-a-0", Path("/h"), {}, known=known
    )
    assert made.data["mounts"] == expected
