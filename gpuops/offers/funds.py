"""What the account can pay: asked aside, so that nobody waits for it; `offers.lease` decides what follows from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from gpuops.core.context import World
from gpuops.core.errors import GpuopsError
from gpuops.core.models import Lease
from gpuops.ledger.store import ClusterRow
from gpuops.offers import lease as leases
from gpuops.offers.lease import Funds
from provisioners.base import Provisioner

PATIENCE_S = 3.0
"""So long the answer is waited for where everything else is done."""


class Asked:
    """A question to a provider, under way since this was made."""

    def __init__(self, world: World, provisioner: Provisioner) -> None:
        self._at = world.clock.now()
        self._funds: Funds | None = None
        self._done = threading.Event()
        ask: Callable[[], Mapping[str, float] | None] | None = getattr(provisioner, "account", None)
        if ask is None or provisioner.capabilities.get("rented") is not True:
            self._done.set()
        else:
            threading.Thread(target=self._ask, args=(ask,), daemon=True, name="account").start()

    def told(self, patience_s: float) -> Funds | None:
        """The answer; None where nobody can be asked. One that has not come in time knows nothing."""
        return self._funds if self._done.wait(patience_s) else Funds(asked=self._at)

    def _ask(self, ask: Callable[[], Mapping[str, float] | None]) -> None:
        try:
            told = ask()
            if told is not None:
                known = {name: told.get(name) for name in ("balance", "spend_per_hr", "spend_limit")}
                self._funds = Funds(**known, asked=self._at)
        except GpuopsError:
            self._funds = Funds(asked=self._at)  # never a reason to fail: it is not known
        finally:
            self._done.set()


def beyond(world: World, row: ClusterRow, lease: Lease, now: float) -> str:
    """Why the account cannot pay for all of a live cluster's lease; empty where it can, or where that is not known."""
    try:
        funds = Asked(world, world.provisioner_of(row)).told(PATIENCE_S)
    except GpuopsError:  # the package that brings it is no longer installed
        return ""
    per_hour = sum(one.per_hour for one in world.ledger.resources(row.id) if one.bills)
    return leases.beyond(lease, funds, per_hour, now) if funds is not None else ""
