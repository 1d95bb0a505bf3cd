"""The one place that hands a command its ledger, its provisioners and its guard: lower rooms ask `Context` for them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core.context import Services
from gpuops.core.heartbeat import started_heart

if TYPE_CHECKING:
    from gpuops.core import provider
    from gpuops.ledger.store import ClusterRow, Ledger


def _open_ledger(home: Path, read_only: bool) -> Ledger:
    from gpuops.ledger.store import Ledger

    return Ledger.open_read_only(home) if read_only else Ledger.open(home)


def _load_provisioner(name: str, surroundings: provider.Context) -> provider.LoadedProvisioner:
    from provisioners import registry

    return registry.load_provisioner(name, surroundings)


def _ensure_guard(home: Path, row: ClusterRow, waits: bool) -> None:
    from gpuops.guard import start

    start.ensure(home, row, waits=waits)


SERVICES = Services(_open_ledger, _load_provisioner, _ensure_guard, started_heart)
WITHOUT_GUARD = Services(_open_ledger, _load_provisioner, lambda _home, _row, _waits: None)
"""Where what a command leaves is to be seen, not tidied up."""
OF_GUARD = dataclasses.replace(SERVICES, ensure_guard=WITHOUT_GUARD.ensure_guard)
"""A guard's child has its guard: to replace that one, after an upgrade, it would end itself in the midst of its
work."""
