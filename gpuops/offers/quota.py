"""What an account may have at once, what a request needs of it, and requests for more: reading, filing and watching.

The provider names the quotas and gives the advice (`provider.TellsQuota`). `quota_output` shows the results.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.context import Context
from gpuops.core.errors import Interrupted, RateLimited, Unknown, UsageError
from gpuops.core.format import span
from gpuops.core.models import Request
from gpuops.core.polling import Poller
from gpuops.core.provider import LoadedProvisioner
from gpuops.core.quota import Quota, QuotaIncrease, QuotaReport
from gpuops.core.signals import Signals
from gpuops.core.timings import Whose
from gpuops.offers.billing_account import refuse_dotenv
from gpuops.offers.price_approval import confirm_or_refuse
from gpuops.offers.quota_output import (
    describe_calculation,
    describe_increase,
    describe_progress,
    describe_start,
    region_name,
)

FIRST_WATCH_PAUSE_S = 15.0
LONGEST_WATCH_PAUSE_S = 120.0
"""Pauses between queries of filed requests, each twice the one before: people decide some requests, in days."""

WatchedIncrease = tuple[Quota, QuotaIncrease]
"""A request for more, with the quota that it would raise."""


@dataclass(frozen=True)
class IncreaseResult:
    """The result of `request_increase`."""

    quota: Quota
    """The quota with its open requests, among them the one that was filed."""
    messages: Sequence[str]
    filed: QuotaIncrease | None = None
    """None where no request was needed."""

    @property
    def open_increases(self) -> list[WatchedIncrease]:
        return [(self.quota, increase) for increase in self.quota.increases or ()]


def read_quotas(ctx: Context, request: Request) -> QuotaReport:
    """Ask the provider for its quotas. Raises ProviderError, UsageError."""
    refuse_dotenv(ctx, request.provider)
    with ctx.progress.during(f"asking {request.provider} for its quotas", whose=Whose.PROVIDER):
        report = ctx.provisioner(request.provider).quota(request)
    if report is None:
        raise UsageError(
            f"{request.provider} does not report quotas", f"see what it has: gpuops up {request.provider} --dry-run"
        )
    return report


def open_increases(report: QuotaReport) -> list[WatchedIncrease]:
    """Open requests: of the quotas that the request counts against, or of all without a request."""
    quotas = [quota for quota in report.quotas if quota.asked] or report.quotas
    return [(quota, increase) for quota in quotas for increase in quota.increases or ()]


def request_increase(
    ctx: Context, request: Request, report: QuotaReport, total: float, code: str | None, *, market_given: bool
) -> IncreaseResult:
    """File a request for a new total, unless the limit suffices or a request is open.

    `market_given`: whether spot or on-demand was named and is no default. Raises UsageError, also where the question is
    not confirmed; ProviderError.
    """
    quota = select_quota(report, request, total, code, market_given)
    name = f"{quota.name} ({quota.code}) in {region_name(quota.region)}"
    amount = f"{total:g} {quota.unit}"
    now = ctx.clock.now()
    if quota.limit is not None and total <= quota.limit:
        allowed = f"{quota.limit:g} {quota.unit} of {name} are allowed already: no request was filed"
        return IncreaseResult(quota, [allowed])
    if quota.increases:
        return IncreaseResult(quota, [_already_open(name, quota, quota.increases, now)])
    calculation = describe_calculation(quota, total)
    if not ctx.yes:
        confirm_or_refuse(ctx, f"ask {request.provider} for {amount} of {name}{calculation}", "no request was filed")
    filed = ctx.provisioner(request.provider).request_quota(quota, total)
    messages = [f"asked for {amount} of {name}: request {filed.id}, {filed.status}"]
    if filed.wanted != total:  # the provider answered with a request that was open before
        messages = [_already_open(name, quota, [filed], now)]
    elif quota.need is not None and total < quota.need + (quota.used or 0.0):
        messages.append(f"note: that is less than the request needs{calculation}")
    return IncreaseResult(dataclasses.replace(quota, increases=(filed,)), messages, filed)


def _already_open(name: str, quota: Quota, increases: Sequence[QuotaIncrease], now: float) -> str:
    requests = ", ".join(describe_increase(quota, increase, now) for increase in increases)
    return f"a request for more of {name} is open already: {requests}; no new one was filed"


def select_quota(report: QuotaReport, request: Request, total: float, code: str | None, market_given: bool) -> Quota:
    """The quota to raise: the one with this code, else the only one that the request counts against.

    Raises UsageError where there are several, or none.
    """
    regions = list(dict.fromkeys(quota.region for quota in report.quotas))
    if len(regions) > 1:
        raise UsageError(
            "an increase is requested in one region at a time", f"name one: --region {region_name(regions[0])}"
        )
    if code is None:
        needed = [quota for quota in report.quotas if quota.asked or (market_given and quota.usual)]
        matches = [quota for quota in needed if quota.code]
        if needed and not matches:
            raise UsageError(
                f"there is no quota to raise ({needed[0].name}: {needed[0].why})",
                next(iter(report.advice), f"try it: gpuops up {request.provider}"),
            )
    else:
        matches = [quota for quota in report.quotas if quota.code.lower() == code.lower()]
    if len(matches) == 1:
        return matches[0]
    candidates = [quota for quota in (matches or report.quotas) if quota.code]
    names = ", ".join(f"{quota.code} ({quota.name})" for quota in candidates)
    if code is not None:
        raise UsageError(f"there is no quota {code} for that request", f"there are {names}")
    raise UsageError(
        f"which quota shall be raised to {total:g}?",
        f"say what for (gpuops quota {request.provider} --gpus 4 --spot), or name it with --code: {names}",
    )


def watch_increases(ctx: Context, provider: str, increases: Sequence[WatchedIncrease]) -> list[WatchedIncrease]:
    """Query open requests until all are decided, or Ctrl-C. Returns their last known states, in the same order."""
    watched = list(increases)
    for quota, increase in watched:
        for line in describe_start(quota, increase, ctx.clock.now()):
            ctx.out.say(line)
    try:
        with Signals(), ctx.progress.during(f"{provider} decides", aside=True, whose=Whose.PROVIDER):
            _poll_until_decided(ctx, provider, watched)
    except Interrupted:
        ctx.out.say("stopped watching; open requests stay filed")
    return watched


def _poll_until_decided(ctx: Context, provider: str, watched: list[WatchedIncrease]) -> None:
    """Replace the entries of `watched` by their latest states until none is open; a change of one is printed."""
    api = ctx.provisioner(provider)
    last_error = ""
    poller = Poller(ctx.clock, math.inf, FIRST_WATCH_PAUSE_S, LONGEST_WATCH_PAUSE_S, factor=2.0)
    for number, _ in enumerate(poller):
        if number > 0:  # the states at the beginning have just been read
            last_error = _query_open(ctx, api, watched, last_error)
        if not _any_open(watched):
            return
        ctx.progress.waits(f"looking again in {span(poller.next_pause_s)}")


def _query_open(ctx: Context, api: LoadedProvisioner, watched: list[WatchedIncrease], last_error: str) -> str:
    """Query each open entry of `watched` once. Returns the last error's sentence, which is printed once only."""
    for index, (quota, before) in enumerate(watched):
        if not before.open:
            continue
        try:
            latest = api.requested_quota(quota, before.id)
        except (RateLimited, Unknown) as error:  # one failed query does not end a long wait
            if error.message != last_error:
                ctx.out.say(f"note: {error.message}")
            last_error = error.message
            continue
        watched[index] = (quota, latest)
        # The last decision is not printed here: it is the command's result.
        if latest.status != before.status and _any_open(watched):
            for line in describe_progress(quota, latest):
                ctx.out.say(line)
    return last_error


def _any_open(watched: Sequence[WatchedIncrease]) -> bool:
    return any(increase.open for _, increase in watched)
