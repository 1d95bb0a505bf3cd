"""Presigned URLs of a bucket, renewed on a run's nodes before they expire, while a command or the guard follows it.

URLs that temporary credentials (SSO, an assumed role) signed expire with the session, as a rule after an hour, and
no signature holds for longer than seven days. Newer ones are signed with the credentials of the moment: botocore
refreshes them by itself while the login lasts.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from gpuops.core.context import Context
from gpuops.core.errors import FINAL_REFUSALS, GpuopsError, NodeRefused
from gpuops.core.format import clock_time
from gpuops.core.sink import BucketSink
from gpuops.ledger.store import LedgerUnwritable, RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs.launch_spec import request_of, session_of
from gpuops.sync import bucket

RENEW_BEFORE_END_S = 900.0
"""How long before they expire URLs are renewed: botocore refreshes credentials from the same moment on."""
RETRY_INTERVAL_S = 60.0
"""How often a failed renewal is retried."""
MIN_GAIN_S = 60.0
"""How much longer newer URLs must be valid to be sent."""


class UrlRenewal:
    """The renewal for one run: `poll` returns at once, the work is done in a thread."""

    def __init__(self, ctx: Context, session: ClusterSession, row: RunRow) -> None:
        self._ctx = ctx
        self._session = session
        self._row = row
        self._sink = request_of(row).sink
        facts = ctx.ledger.run(row.id).facts
        self._place = facts.bucket_place
        self._until = facts.bucket_until or 0.0
        self._uploads = facts.uploads
        self._tried = 0.0
        self._reported = False
        self._thread: threading.Thread | None = None
        self._outcome: float | GpuopsError | None = None

    def poll(self) -> None:
        """Start a renewal where one is due, note its end in the ledger, and report a failure once. Raises nothing."""
        with suppress(LedgerUnwritable):  # a full disk ends no run: what is not noted is renewed earlier than it has to
            self._poll()

    def _poll(self) -> None:
        if self._thread is not None:
            if not self._thread.is_alive():
                self._thread = None
                self._note()
            return
        now = self._ctx.clock.now()
        if not self._uploads or self._until - now > RENEW_BEFORE_END_S or now - self._tried < RETRY_INTERVAL_S:
            return
        lease = self._ctx.ledger.cluster(self._session.row.id).lease
        if bucket.desired_grant_end(now, lease.end) - self._until < MIN_GAIN_S:
            return
        self._tried = now
        self._thread = threading.Thread(target=self._renew, args=(lease.end,), daemon=True, name="renew presigned URLs")
        self._thread.start()

    def _renew(self, lease_end: float | None) -> None:
        try:
            if not isinstance(self._sink, BucketSink):
                return
            granted = bucket.renew_grant(self._ctx, self._sink, self._place, self._uploads, lease_end)
            if granted.until - self._until < MIN_GAIN_S:
                return
            clients = session_of(self._session, self._row).clients  # as they are now: others reconnect
            for index, urls in enumerate(granted.urls):
                try:
                    clients[index].call("urls", run=self._row.name, urls=urls.document())
                except NodeRefused as refusal:  # a node that has ended needs none
                    if refusal.kind not in FINAL_REFUSALS:
                        raise
            self._outcome = granted.until
        except GpuopsError as error:
            self._outcome = error
        except Exception:
            pass  # it is retried; the nodes hold what they cannot send

    def _note(self) -> None:
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, float):
            self._until, self._reported = outcome, False
            facts = self._ctx.ledger.run(self._row.id).facts
            kept = {**facts, "bucket": {"place": self._place, "until": outcome}}
            self._ctx.ledger.set_run(self._row.id, facts=kept)
        elif outcome is not None and not self._reported:
            self._reported = True
            until = clock_time(self._until, self._ctx.clock.now())
            say = f"{self._row.name} can write to its bucket until {until} (local time), and not longer"
            hint = f" ({outcome.hint})" if outcome.hint else ""
            self._ctx.out.say(f"note: {say}: {outcome.message}{hint}")
