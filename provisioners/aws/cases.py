"""What to do about a request for more quota that AWS has not granted, or not yet. Pure.

A request by the API opens a support case without a word of what the quota is for. New accounts that asked for 4 to 8
vCPU were refused with the same text each time; who replied in the same case had it within one to four days (field
reports of five accounts). Such a case may be CASE_CLOSED before it is granted, and after it. A grant takes effect
within an hour (AWS, "Requesting a quota increase").
"""

from __future__ import annotations

from gpuops.core.models import Increase, Quota

CASE = "https://support.console.aws.amazon.com/support/home#/case/?displayId={}"
CASES = "https://support.console.aws.amazon.com/support/home#/case/history"
SETTLES_S = 3600.0
"""So long after a case was closed its quota may still change."""
SETTLING = "a grant takes effect within an hour: the quota is looked at until then"
SMALL = 8
"""vCPU: a first request for more than that is rarely granted to a new account."""


def link(one: Increase) -> str:
    """Where a request's case is read and replied to; without its number the list of all cases."""
    return CASE.format(one.case) if one.case else CASES


def settles(one: Increase, now: float) -> bool:
    """Whether a request that was closed without a word of how may still turn out to be granted."""
    since = one.decided if one.decided is not None else one.created
    return since is not None and now - since < SETTLES_S


def open_case(one: Increase) -> tuple[str, ...]:
    """What to say of a request that people decide."""
    return (f"people at AWS decide, and may ask what it is for: {link(one)}",) if one.case else ()


def refused(quota: Quota, one: Increase) -> tuple[str, ...]:
    """What to do about one that was not granted, with a text to reply with."""
    machines = f"{quota.machines} ({quota.sum})" if quota.machines else "N x TYPE"
    return (
        f"reply in its case, and file no new request; most are granted then: {link(one)}",
        "a text to begin with (fill in HOURS and AMOUNT):",
        f"  Please set {quota.name} ({quota.code}) in {quota.region.partition('@')[0]} to {one.wanted:g} {quota.unit}.",
        f"  I train neural networks with PyTorch on {machines}, about HOURS hours a month.",
        "  Each machine ends with its run, and by a watchdog after 24 hours. A budget of $AMOUNT a month has an alarm.",
    )
