"""Nodes of one's own that were just made: they are contacted at once, and described only where that fails."""

from __future__ import annotations

import pytest

from gpuops.clusters import readiness
from gpuops.core.errors import ConnectionLost
from gpuops.core.models import Resource
from provisioners.local import LocalProvisioner
from tests.desk import Desk, desk  # noqa: F401 - a fixture


@pytest.mark.parametrize("failures", [0, 1])
def test_what_has_just_been_made_is_not_asked_for(
    desk: Desk,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
) -> None:
    described: list[str] = []
    describe, contact = LocalProvisioner.describe, readiness.contact_cluster
    outages = [ConnectionLost("node0 ended", "try again")] * failures

    def count(self: LocalProvisioner, resource: Resource) -> Resource:
        described.append(resource.name.rpartition("-")[2])
        return describe(self, resource)

    def fail_first(*arguments: object) -> object:
        if outages:
            raise outages.pop()
        return contact(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalProvisioner, "describe", count)
    monkeypatch.setattr(readiness, "contact_cluster", fail_first)
    try:
        done = desk.type("up", "local", "--nodes", "2", "--name", "lab")
        assert done.code == 0, done.err
        assert sorted(described) == ["0", "1"] * failures
    finally:
        desk.type("down", "lab", "--force")
