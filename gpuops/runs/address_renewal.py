"""Addresses of a bucket, renewed on a run's nodes before they end, as long as anybody follows the run.

Those that temporary credentials have signed (SSO, an assumed role) end with the session, as a rule after an hour, and
no signature holds for longer than seven days. Whoever follows, a command or the guard, signs newer ones with what its
credentials are by then: botocore gets others by itself while the login lasts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, NodeRefused
from gpuops.core.format import clock_time
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs.spec import request_of
from gpuops.sync import bucket

RENEW_BEFORE_END_S = 900.0
"""So long before the end newer ones are signed: from then on botocore looks for newer credentials, too."""
RETRY_INTERVAL_S = 60.0
"""How often that is tried."""
MIN_GAIN_S = 60.0
"""What lasts less longer than before is not sent."""


class AddressRenewal:
    """`look` as often as you like; what takes long is done in a thread. `clock`: UTC seconds."""

    def __init__(self, ctx: Context, live: ClusterSession, row: RunRow, clock: Callable[[], float] = time.time) -> None:
        self._world = ctx
        self._live = live
        self._row = row
        self._clock = clock
        self._sink = request_of(row).sink or {}
        facts = ctx.ledger.run(row.id).facts
        self._place: str = (facts.get("bucket") or {}).get("place") or ""
        self._until: float = (facts.get("bucket") or {}).get("until") or 0.0
        self._uploads: list[list[str]] = facts.get("uploads") or []
        self._tried = 0.0
        self._told = False
        self._thread: threading.Thread | None = None
        self._found: float | GpuopsError | None = None

    def look(self) -> None:
        """Begin where it is time to; note what has come of it, and say once what is in its way. Raises nothing."""
        if self._thread is not None:
            if not self._thread.is_alive():
                self._thread = None
                self._note()
            return
        now = self._clock()
        if not self._uploads or self._until - now > RENEW_BEFORE_END_S or now - self._tried < RETRY_INTERVAL_S:
            return
        lease = self._world.ledger.cluster(self._live.row.id).lease
        if bucket.wanted(now, lease.end) - self._until < MIN_GAIN_S:
            return
        self._tried = now
        self._thread = threading.Thread(target=self._renew, args=(lease.end,), daemon=True, name="renew addresses")
        self._thread.start()

    def _renew(self, lease_end: float | None) -> None:
        try:
            granted = bucket.renewed(self._world, self._sink, self._place, self._uploads, lease_end)
            if granted.until - self._until < MIN_GAIN_S:
                return
            for index, urls in enumerate(granted.urls):
                try:
                    self._live.clients[index].call("urls", run=self._row.name, urls=urls)
                except NodeRefused as refusal:  # one that is over needs none
                    if refusal.kind not in ("ended", "no-node", "no-run"):
                        raise
            self._found = granted.until
        except GpuopsError as error:
            self._found = error
        except Exception:
            pass  # it is tried again; in the end the nodes hold what they cannot send

    def _note(self) -> None:
        found, self._found = self._found, None
        if isinstance(found, float):
            self._until, self._told = found, False
            facts = self._world.ledger.run(self._row.id).facts
            kept = {**facts, "bucket": {"place": self._place, "until": found}}
            self._world.ledger.set_run(self._row.id, facts=kept)
        elif found is not None and not self._told:
            self._told = True
            until = clock_time(self._until, self._clock())
            say = f"{self._row.name} can write to its bucket until {until} (local time), and not longer"
            hint = f" ({found.hint})" if found.hint else ""
            self._world.out.say(f"note: {say}: {found.say}{hint}")
