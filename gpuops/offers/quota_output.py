"""The result of `gpuops quota` as text, JSON and exit code. Pure: no provider is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gpuops.core.errors import worst_exit_code
from gpuops.core.format import ago, table
from gpuops.core.quota import Quota, QuotaIncrease, QuotaReport

KIND = "quota"
EXIT_DOES_NOT_FIT = 3
"""Exit code where the request does not fit: the provider would refuse it."""
UNKNOWN = "unknown"
"""A number that the provider does not state."""
MAX_REGIONS_IN_FULL = 3
"""In more regions only the quotas of the request are shown."""
HEADINGS = ("REGION", "QUOTA", "CODE", "LIMIT", "IN USE", "NEED", "MISSING", "OPEN REQUESTS")
NEED_HEADINGS = ("NEED", "MISSING")
"""Columns that are shown only where something was requested."""


@dataclass(frozen=True)
class Outcome:
    """The result of one `gpuops quota`."""

    report: QuotaReport
    filed: QuotaIncrease | None = None
    messages: Sequence[str] = ()
    """Sentences on a request for more (`said` in JSON)."""
    watched: Sequence[tuple[Quota, QuotaIncrease]] = ()
    """The watched requests in their last known state."""

    @property
    def exit_code(self) -> int:
        if self.watched:
            return worst_exit_code(*(EXIT_DOES_NOT_FIT for _, increase in self.watched if increase.granted is False))
        if self.messages:
            return 0
        return EXIT_DOES_NOT_FIT if judge_fit(self.report) is Fit.NO else 0


class Fit(Enum):
    """Whether a request fits in some region. The values are those of the JSON form."""

    YES = True
    """Also without a request."""
    NO = False
    UNKNOWN = None


def judge_fit(report: QuotaReport) -> Fit:
    """Whether the request that a report was made for fits in some region."""
    needed = [quota for quota in report.quotas if quota.asked]
    if not needed or any(quota.missing == 0 for quota in needed):
        return Fit.YES
    return Fit.UNKNOWN if any(quota.missing is None for quota in needed) else Fit.NO


def build_document(provider: str, outcome: Outcome) -> dict[str, Any]:
    """The JSON of `--json`."""
    return {
        "provider": provider,
        "fits": judge_fit(outcome.report).value,
        "quotas": [_quota_document(quota) for quota in outcome.report.quotas],
        "advice": list(outcome.report.advice),
        "notes": list(outcome.report.notes),
        "filed": None if outcome.filed is None else dataclasses.asdict(outcome.filed),
        "watched": [
            {"region": quota.region, "code": quota.code, **dataclasses.asdict(increase)}
            for quota, increase in outcome.watched
        ],
        "said": list(outcome.messages),
    }


def _quota_document(quota: Quota) -> Mapping[str, Any]:
    return {**dataclasses.asdict(quota), "missing": quota.missing, "free": quota.free}


FIT_LINES: Mapping[Fit, Sequence[str]] = {
    Fit.YES: (),
    Fit.NO: ("it does not fit",),
    Fit.UNKNOWN: ("whether it fits is not known",),
}


def format_lines(outcome: Outcome, now: float, width: int | None) -> list[str]:
    """How watched requests ended, what was filed, or the table with its advice."""
    if outcome.watched:
        ended = [line for quota, increase in outcome.watched for line in describe_end(quota, increase)]
        denied = any(increase.granted is False for _, increase in outcome.watched)
        return [*ended, *(["what runs without it: the same line without --watch and --request"] if denied else [])]
    if outcome.messages:
        return list(outcome.messages)
    report = outcome.report
    return [*quota_table(select_shown(report.quotas), now, width), *FIT_LINES[judge_fit(report)], *report.advice]


def select_shown(quotas: Sequence[Quota]) -> Sequence[Quota]:
    """All quotas, or in many regions only those that the request counts against."""
    needed = [quota for quota in quotas if quota.asked]
    return needed if needed and len({quota.region for quota in quotas}) > MAX_REGIONS_IN_FULL else quotas


def quota_table(quotas: Sequence[Quota], now: float, width: int | None) -> list[str]:
    """One line per quota under a line of headings; empty without quotas."""
    if not quotas:
        return []
    rows = [_cells(quota, now) for quota in quotas]
    nothing_needed = all(quota.need is None for quota in quotas)
    headings = [heading for heading in HEADINGS if not (nothing_needed and heading in NEED_HEADINGS)]
    return table([headings, *([row[heading] for heading in headings] for row in rows)], width, gives=1, spare=("CODE",))


def _cells(quota: Quota, now: float) -> dict[str, str]:
    """Heading to cell."""
    needs_nothing = quota.need is None
    cells = (
        region_name(quota.region),
        quota.name,
        quota.code or "-",
        _number(quota.limit, quota.unit),
        _number(quota.used),
        "-" if needs_nothing else _number(quota.need),
        "-" if needs_nothing else _number(quota.missing),
        _open_requests(quota, now),
    )
    return dict(zip(HEADINGS, cells, strict=True))


def _number(value: float | None, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value:g} {unit}".rstrip()


def _open_requests(quota: Quota, now: float) -> str:
    if quota.increases is None:
        return UNKNOWN
    return ", ".join(describe_increase(quota, increase, now) for increase in quota.increases) or "none"


def describe_calculation(quota: Quota, total: float) -> str:
    """How the needed number is computed: ` (2 x 48 vCPU + 16 in use = 112; now 32)`; empty where nothing is known."""
    parts = [] if quota.limit is None else [f"now {quota.limit:g}"]
    if quota.need is not None:
        needed = quota.need + (quota.used or 0.0)
        in_use = f" + {quota.used:g} in use" if quota.used else ""
        more = "" if total >= needed else ", which is more"
        parts = [f"{quota.sum}{in_use} = {needed:g}{more}", *parts]
    return f" ({'; '.join(parts)})" if parts else ""


def describe_increase(quota: Quota, increase: QuotaIncrease, now: float) -> str:
    """`96 vCPU, PENDING, 2 h 00 min ago`."""
    return f"{increase.wanted:g} {quota.unit}, {increase.status}{_age(increase, now)}"


def describe_start(quota: Quota, increase: QuotaIncrease, now: float) -> list[str]:
    """The lines on a request whose watch begins."""
    return [f"{_subject(quota, increase)}: {increase.status}{_age(increase, now)}", *increase.advice]


def describe_progress(quota: Quota, increase: QuotaIncrease) -> list[str]:
    """The lines on a request whose status has changed while others are open."""
    return describe_end(quota, increase)[: None if increase.open else 1]


def describe_end(quota: Quota, increase: QuotaIncrease) -> list[str]:
    """The lines on a request whose watch has ended."""
    return [f"{_subject(quota, increase)}: {_decision(increase)}", *increase.advice]


def _subject(quota: Quota, increase: QuotaIncrease) -> str:
    return f"{increase.wanted:g} {quota.unit} of {quota.name} in {region_name(quota.region)}"


def _decision(increase: QuotaIncrease) -> str:
    if increase.open:
        return increase.status
    decision = {True: "granted", False: "not granted", None: "closed"}[increase.granted]
    return f"{decision} ({increase.status})"


def _age(increase: QuotaIncrease, now: float) -> str:
    return "" if increase.created is None else f", {ago(increase.created, now)}"


def region_name(region: str) -> str:
    """A region without what a provider may have added after `@`."""
    return region.partition("@")[0]
