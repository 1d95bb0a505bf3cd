"""What `gpuops up` says last of machines that cost money: who ends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.up import _announce
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, LocalDisk
from gpuops.core.models import Lease, Resource
from gpuops.guard import guard_heartbeat
from tests.fakes.provider import NAME, surroundings

ITSELF, GUARD, NOBODY = "it ends by itself at ", "the guard on this computer ends it at ", "nothing else does when "


@pytest.mark.parametrize(
    ("able", "data", "guard", "say"),
    [
        (True, {}, "works", ITSELF),
        (True, {}, "refused", ITSELF),
        (True, {"ends_itself": False}, "works", GUARD),
        ("it has no key", {}, "works", GUARD),
        ("it has no key", {}, "refused", NOBODY),
        ("it has no key", {}, "cannot be started", NOBODY),
    ],
)
def test_who_ends_what_is_rented(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    able: bool | str,
    data: dict[str, Any],
    guard: str,
    say: str,
) -> None:
    _, world = surroundings(tmp_path, monkeypatch)
    inner: Any = world.provisioner(NAME)
    inner.capabilities["self_destruct"] = able
    row = world.ledger.intend(
        provider=NAME, name="lab", folder=world.folder, ephemeral=False, token="t", request={},
        boot_deadline=world.clock.now() + 60, lease=Lease(world.clock.now() + 3600), owner_process=world.me,
        now=world.clock.now(),
    )  # fmt: skip
    machine = Resource("machine", "i", "", f"gpuops-{world.owner}-lab-0", True, per_hour=1.0, data=data)
    world.ledger.got(row.id, machine)
    monkeypatch.setattr("gpuops.commands.ssh.host_name_lines", lambda *_: [])
    if guard == "cannot be started":

        def ensure(*_: object, **__: object) -> None:
            raise LocalDisk("the guard cannot be started", "check the disk")

        monkeypatch.setattr(Context, "ensure_guard", ensure)
    if guard == "refused":
        guard_heartbeat.lock_path(world.home, row.id)
        guard_heartbeat.record_refusal(world.home, row, AuthFailed("no such key", "make another"))
    _announce(world, row, [machine], {}, [])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"`gpuops down lab` ends it; {say}"), last
