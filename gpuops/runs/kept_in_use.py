"""Machines that end only together stay in use while a run is followed on some of them.

The idle end of one pod of a RunPod cluster ends the cluster, and with it what runs on the others: of an array whose
other runs have ended, or of a command on node0. A batch job keeps a machine whose node has ended, without use.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from gpuops.agent.workers import WORKERS, Job
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError
from gpuops.core.models import Lease
from gpuops.ledger.store import LedgerUnwritable, RunRow
from gpuops.nodes.session import ClusterSession, send_lease
from gpuops.runs.launch_spec import request_of

INTERVAL_S = 30.0
"""Time between two signs of use: less than the shortest idle time that can be asked for."""


class KeptInUse:
    """For one run: `poll` returns at once, the work is done in a thread."""

    def __init__(self, ctx: Context, session: ClusterSession, row: RunRow) -> None:
        self._ctx = ctx
        self._cluster = row.cluster
        self._session = session.whole or session
        request, machines = request_of(row), self._session.machines
        used = request.nodes if request.kind == "torchrun" or request.all_nodes else 1
        end_together = any(machine.data.get("ends_itself") is False for machine in machines)
        self._is_needed = used < len(machines) and (end_together or _are_of_one_job(ctx, session))
        self._told = ctx.clock.monotonic()
        self._job: Job | None = None

    def poll(self) -> None:
        """Send a sign of use to every node where one is due. Raises nothing."""
        now = self._ctx.clock.monotonic()
        is_working = self._job is not None and self._job.is_alive()
        if not self._is_needed or is_working or now - self._told < INTERVAL_S:
            return
        self._told = now
        with suppress(LedgerUnwritable):
            lease = self._ctx.ledger.cluster(self._cluster).lease
            self._job = WORKERS.start(partial(self._tell, lease), "signs of use")

    def _tell(self, lease: Lease) -> None:
        """The lease that they have, once more."""
        with suppress(GpuopsError):  # a node that has ended
            send_lease(self._session, lease, self._ctx.clock.now())


def _are_of_one_job(ctx: Context, session: ClusterSession) -> bool:
    with suppress(GpuopsError):  # a provider that cannot be loaded now keeps nobody from following a run
        return ctx.provisioner_of(session.row).grants_machines
    return False
