"""`gpuops quota`: what an account may have at once, what a request needs of it, and requests for more.

The provider names the quotas and the advice (`provider.TellsQuota`); this module shows them, files a request for more
after a question, and watches requests until they are decided.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuops.core.context import Context
from gpuops.core.errors import Interrupted, RateLimited, Unknown, UsageError, worst
from gpuops.core.format import ago, span, table
from gpuops.core.models import Increase, Quota, QuotaReport, Request
from gpuops.core.signals import Signals
from gpuops.offers.payer import refuse_dotenv
from provisioners.checked import Checked

KIND = "quota"
EXIT_DOES_NOT_FIT = 3
"""Exit code where the request does not fit: the provider would refuse it."""
WATCH_PAUSES_S = (15.0, 30.0, 60.0, 120.0)
"""Pauses between queries of a filed request; the last repeats. People decide some requests, in days."""
UNKNOWN = "unknown"
MAX_REGIONS_IN_FULL = 3
"""In more regions only the quotas of the request are shown."""


@dataclass
class Outcome:
    """The result of one command."""

    report: QuotaReport
    filed: Increase | None = None
    decided: list[tuple[Quota, Increase]] = field(default_factory=list)
    """The watched requests in their last known state."""
    said: list[str] = field(default_factory=list)
    """Sentences on a request for more."""

    @property
    def exit_code(self) -> int:
        if self.decided:
            return worst(*(EXIT_DOES_NOT_FIT for _, one in self.decided if one.granted is False))
        if self.said:
            return 0
        return EXIT_DOES_NOT_FIT if fits(self.report) is False else 0


def fits(report: QuotaReport) -> bool | None:
    """Whether the request fits in some region; None where unknown, True without a request."""
    asked = [quota for quota in report.quotas if quota.asked]
    if not asked or any(quota.missing == 0 for quota in asked):
        return True
    return None if any(quota.missing is None for quota in asked) else False


def read_quotas(ctx: Context, request: Request) -> QuotaReport:
    """Ask the provider for its quotas. Raises ProviderError, UsageError."""
    refuse_dotenv(ctx, request.provider)
    with ctx.progress.during(f"asking {request.provider} for its quotas"):
        report = _quota_api(ctx, request.provider).quota(request)
    if report is None:
        raise UsageError(
            f"{request.provider} tells of no quotas", f"see what it has: gpuops up {request.provider} --dry-run"
        )
    return report


def request_increase(
    ctx: Context, request: Request, outcome: Outcome, wanted: float, code: str | None, *, market_said: bool = False
) -> Quota:
    """File a request for more, unless the limit suffices or a request is open. Returns the quota.

    `market_said`: whether spot or on-demand was named and is no default. Raises UsageError, also where the question is
    not confirmed; ProviderError.
    """
    quota = _meant(outcome.report, request, wanted, code, market_said)
    where = f"{quota.name} ({quota.code}) in {_name(quota.region)}"
    total = f"{wanted:g} {quota.unit}"
    if quota.limit is not None and wanted <= quota.limit:
        outcome.said.append(f"{quota.limit:g} {quota.unit} of {where} are allowed already: nothing was asked for")
        return quota
    if quota.increases:
        requests = ", ".join(_request(one, quota, ctx.clock.now()) for one in quota.increases)
        outcome.said.append(f"more of {where} is asked for already: {requests}; nothing was asked for now")
        return quota
    _agree(ctx, f"ask {request.provider} for {total} of {where}{_sum(quota, wanted)}: go?")
    filed = _quota_api(ctx, request.provider).request_quota(quota, wanted)
    outcome.filed = filed
    if filed.wanted == wanted:
        outcome.said.append(f"asked for {total} of {where}: request {filed.id}, {filed.status}")
        if quota.need is not None and wanted < quota.need + (quota.used or 0.0):
            outcome.said.append(f"note: that would not do for what is wanted{_sum(quota, wanted)}")
    else:
        request_line = _request(filed, quota, ctx.clock.now())
        outcome.said.append(f"more of {where} is asked for already: {request_line}; nothing was asked for now")
    return dataclasses.replace(quota, increases=(filed,))


def _sum(quota: Quota, wanted: float) -> str:
    """How the number is computed: ` (2 x 48 vCPU + 16 in use; now 32)`."""
    known = [] if quota.limit is None else [f"now {quota.limit:g}"]
    if quota.need is not None:
        total = quota.need + (quota.used or 0.0)
        in_use = f" + {quota.used:g} in use" if quota.used else ""
        less = "" if wanted >= total else ", which is more"
        known = [f"{quota.sum}{in_use} = {total:g}{less}", *known]
    return f" ({'; '.join(known)})" if known else ""


def _agree(ctx: Context, question: str) -> None:
    if ctx.yes:
        return
    if not ctx.out.interactive:
        raise UsageError("cannot ask for confirmation: no terminal", "add --yes")
    if not ctx.out.confirm(question):
        raise UsageError("not confirmed: nothing was asked for", "say --yes to skip the question")


def _meant(report: QuotaReport, request: Request, wanted: float, code: str | None, market_said: bool) -> Quota:
    """The one quota that is meant. Raises UsageError where that is unclear."""
    regions = list(dict.fromkeys(quota.region for quota in report.quotas))
    if len(regions) > 1:
        raise UsageError("more is asked for in one region at a time", f"name one: --region {_name(regions[0])}")
    if code is None:
        asked = [quota for quota in report.quotas if quota.asked or (market_said and quota.usual)]
        found = [quota for quota in asked if quota.code]
        if asked and not found:
            raise UsageError(
                f"there is nothing that more could be asked of ({asked[0].name}: {asked[0].why})",
                next(iter(report.advice), f"try it: gpuops up {request.provider}"),
            )
    else:
        found = [quota for quota in report.quotas if quota.code.lower() == code.lower()]
    if len(found) == 1:
        return found[0]
    known = [quota for quota in (found or report.quotas) if quota.code]
    names = ", ".join(f"{quota.code} ({quota.name})" for quota in known)
    if code is not None:
        raise UsageError(f"there is no quota {code} for that request", f"there are {names}")
    raise UsageError(
        f"which quota is to be {wanted:g}?",
        f"say what for (gpuops quota {request.provider} --gpus 4 --spot), or name it with --code: {names}",
    )


def watch(ctx: Context, provider: str, outcome: Outcome, targets: Sequence[tuple[Quota, Increase]]) -> None:
    """Query open requests until all are decided, or Ctrl-C."""
    outcome.decided = list(targets)
    for quota, one in targets:
        for line in (f"{_what(quota, one)}: {one.status}{_since(one, ctx.clock.now())}", *one.advice):
            ctx.out.say(line)
    try:
        with Signals(), ctx.progress.during(f"{provider} decides", aside=True):
            _until_decided(ctx, provider, outcome)
    except Interrupted:
        ctx.out.say("no longer watching; what was asked for stays so")


def _until_decided(ctx: Context, provider: str, outcome: Outcome) -> None:
    looks = 0
    api = _quota_api(ctx, provider)
    troubled = ""
    while any(one.open for _, one in outcome.decided):
        pause = WATCH_PAUSES_S[min(looks, len(WATCH_PAUSES_S) - 1)]
        looks += 1
        ctx.progress.waits(f"looking again in {span(pause)}")
        ctx.clock.sleep(pause)
        for at, (quota, before) in enumerate(outcome.decided):
            if not before.open:
                continue
            try:
                now = api.requested_quota(quota, before.id)
            except (RateLimited, Unknown) as error:  # one failed query does not end a long wait
                if error.say != troubled:
                    ctx.out.say(f"note: {error.say}")
                troubled = error.say
                continue
            outcome.decided[at] = (quota, now)
            if now.status != before.status and any(one.open for _, one in outcome.decided):  # the last is the result
                for line in (f"{_what(quota, now)}: {_status(now)}", *(now.advice if now.open else ())):
                    ctx.out.say(line)


def open_requests(report: QuotaReport) -> list[tuple[Quota, Increase]]:
    """Open requests: of the quotas that the request counts against, or of all without a request."""
    asked = [quota for quota in report.quotas if quota.asked] or report.quotas
    return [(quota, one) for quota in asked for one in quota.increases or ()]


def _quota_api(ctx: Context, provider: str) -> Checked:
    found = ctx.provisioner(provider)
    return found if isinstance(found, Checked) else Checked(found)


def document(provider: str, outcome: Outcome) -> dict[str, Any]:
    """For programs."""
    filed = outcome.filed
    return {
        "provider": provider,
        "fits": fits(outcome.report),
        "quotas": [_row_document(quota) for quota in outcome.report.quotas],
        "advice": list(outcome.report.advice),
        "notes": list(outcome.report.notes),
        "filed": None if filed is None else dataclasses.asdict(filed),
        "watched": [
            {"region": quota.region, "code": quota.code, **dataclasses.asdict(one)} for quota, one in outcome.decided
        ],
        "said": outcome.said,
    }


def _row_document(quota: Quota) -> Mapping[str, Any]:
    return {**dataclasses.asdict(quota), "missing": quota.missing, "free": quota.free}


def lines(ctx: Context, outcome: Outcome) -> list[str]:
    """The lines for people: how watched requests ended, what was filed, or the table with its advice."""
    if outcome.decided:
        ended = [
            line for quota, one in outcome.decided for line in (f"{_what(quota, one)}: {_status(one)}", *one.advice)
        ]
        denied = any(one.granted is False for _, one in outcome.decided)
        return [*ended, *(["what runs without it: the same line without --watch and --request"] if denied else [])]
    if outcome.said:
        return outcome.said
    report = outcome.report
    rows = quota_table(worth_showing(report.quotas), ctx.clock.now(), ctx.out.columns(ctx.out.out))
    verdict = {True: [], False: ["it does not fit"], None: ["whether it fits is not known"]}[fits(report)]
    return [*rows, *verdict, *report.advice]


def worth_showing(quotas: Sequence[Quota]) -> Sequence[Quota]:
    """All quotas, or in many regions only those that the request counts against."""
    asked = [quota for quota in quotas if quota.asked]
    return asked if asked and len({quota.region for quota in quotas}) > MAX_REGIONS_IN_FULL else quotas


def quota_table(quotas: Sequence[Quota], now: float, width: int | None = None) -> list[str]:
    """The table."""
    if not quotas:
        return []
    heading = ["REGION", "QUOTA", "CODE", "LIMIT", "IN USE", "NEED", "MISSING", "OPEN REQUESTS"]
    rows = [
        [
            _name(quota.region),
            quota.name,
            quota.code or "-",
            _number(quota.limit, quota.unit),
            _number(quota.used),
            "-" if quota.need is None else f"{quota.need:g}",
            "-" if quota.need is None else _number(quota.missing),
            _open(quota, now),
        ]
        for quota in quotas
    ]
    if all(quota.need is None for quota in quotas):
        heading, rows = (
            [*heading[:5], heading[7]],
            [[*row[:5], row[7]] for row in rows],
        )
    return table([heading, *rows], width, gives=1, spare=("CODE",))


def _number(value: float | None, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value:g} {unit}".rstrip()


def _open(quota: Quota, now: float) -> str:
    if quota.increases is None:
        return UNKNOWN
    return ", ".join(_request(one, quota, now) for one in quota.increases) or "none"


def _request(one: Increase, quota: Quota, now: float) -> str:
    return f"{one.wanted:g} {quota.unit}, {one.status}{_since(one, now)}"


def _since(one: Increase, now: float) -> str:
    return "" if one.created is None else f", {ago(one.created, now)}"


def _what(quota: Quota, one: Increase) -> str:
    return f"{one.wanted:g} {quota.unit} of {quota.name} in {_name(quota.region)}"


def _status(one: Increase) -> str:
    if one.open:
        return one.status
    ended = {True: "granted", False: "not granted", None: "closed"}[one.granted]
    return f"{ended} ({one.status})"


def _name(region: str) -> str:
    """A region without what a provider may have put behind it."""
    return region.partition("@")[0]
