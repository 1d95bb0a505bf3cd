"""Advice on quotas: what could run today, which increase would do, and what to do about a refused one. Pure.

A request by the API opens a support case without a word of what the quota is for. New accounts that asked for 4 to 8
vCPU were refused with the same text each time; who replied in the same case had it within one to four days (field
reports of five accounts). Such a case may be CASE_CLOSED before it is granted, and after it. A grant takes effect
within an hour (AWS, "Requesting a quota increase").
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.errors import QuotaExceeded
from gpuops.core.format import first_few, plural
from gpuops.core.quota import Quota, QuotaIncrease
from provisioners.aws.api import join_region, split_region
from provisioners.aws.catalog import is_legacy
from provisioners.aws.instance_alternatives import (
    Alternative,
    Demand,
    RegionSurvey,
    fewer_gpus,
    first_per_quota,
    first_per_region,
    format_equivalents,
    requested_alternatives,
    same_gpu_count,
)
from provisioners.aws.options import CPU
from provisioners.aws.quotas import MARKETS, ON_DEMAND, SPOT, UNIT, case_link, format_calculation, quota_class_of

GRANT_DELAY_S = 3600.0
"""A quota may still change for this long after its case was closed."""
GRANT_DELAY_NOTE = "a grant takes effect within an hour: the quota is looked at until then"
SMALL_VCPUS = 8
"""vCPU: a first request for more than that is rarely granted to a new account."""
MAX_NAMES = 3
"""Regions that one sentence names."""


def may_still_be_granted(increase: QuotaIncrease, now: float) -> bool:
    """Whether a request that was closed without a decision may still be granted."""
    moment = increase.decided if increase.decided is not None else increase.created
    return moment is not None and now - moment < GRANT_DELAY_S


def advise_on_refusal(quota: Quota, increase: QuotaIncrease) -> tuple[str, ...]:
    """What to do about a request that was not granted, with a text to reply with."""
    machines = f"{quota.machines} ({quota.sum})" if quota.machines else "N x TYPE"
    region = split_region(quota.region)[0]
    return (
        f"reply in its case, and file no new request; most are granted then: {case_link(increase)}",
        "a text to begin with (fill in HOURS and AMOUNT):",
        f"  Please set {quota.name} ({quota.code}) in {region} to {increase.wanted:g} {quota.unit}.",
        f"  I train neural networks with PyTorch on {machines}, about HOURS hours a month.",
        "  Each machine ends with its run, and by a watchdog after 24 hours. A budget of $AMOUNT a month has an alarm.",
    )


@dataclass(frozen=True)
class Advice:
    """One line of advice, and the command that follows it; empty where none does."""

    say: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.say}: {self.command}" if self.command else self.say


MORE_GPUS = Advice("that is for one GPU, with --gpus N for more, and --nodes N for several machines")


def advise_on_request(asked: Demand, places: Sequence[RegionSurvey], now: float) -> list[Advice]:
    """Everything worth knowing, the most useful first."""
    candidates = list(requested_alternatives(asked, places, asked.market))
    if not candidates:
        return []
    fitting = first_per_region(candidate for candidate in candidates if candidate.fits)
    if fitting:
        return _advise_fitting(asked, fitting)
    unknown = [candidate for candidate in candidates if candidate.free is None]
    known = [candidate for candidate in candidates if candidate.free is not None]
    other_market = _advise_other_market(asked, places)
    if not known:
        return [*_advise_unknown(asked, unknown), *other_market]
    if smaller := _advise_smaller_machines(asked, places, asked.market):
        lines = [
            *other_market,
            *smaller,
            *_advise_ending_machines(known),
            *_advise_other_regions(asked, places),
            *_advise_increase(asked, known, now)[:1],
        ]
    else:
        fewer = _advise_fewer_gpus(asked, places, known)
        increase = [*_advise_first_step(asked, known), *_advise_increase(asked, known, now)]
        lines = [
            *other_market,
            *fewer,
            *_advise_ending_machines(known),
            *_advise_other_regions(asked, places),
            *increase,
        ]
    return [*lines, *(_advise_unknown(asked.with_type(unknown[0].kind), unknown) if unknown else [])]


def advise_for_one_gpu(asked: Demand, places: Sequence[RegionSurvey], now: float) -> list[Advice]:
    """Advice for a request without GPUs: for one GPU, in both markets, since none was chosen."""
    if not any(place.chosen for place in places):
        return []
    asked = dataclasses.replace(asked, nodes=1, gpus=1)
    lines: list[Advice] = []
    runs = False
    for market in (asked.market, SPOT if asked.market == ON_DEMAND else ON_DEMAND):
        in_market = dataclasses.replace(asked, market=market)
        candidates = list(requested_alternatives(in_market, places, market))
        known = [candidate for candidate in candidates if candidate.free is not None]
        how = _in_market(market)
        if fitting := first_per_region(candidate for candidate in candidates if candidate.fits):
            runs = True
            lines += _advise_fitting(in_market, fitting, f"{how} one GPU")
        elif known:
            where = first_few([*dict.fromkeys(candidate.region for candidate in known)], MAX_NAMES)
            more = _advise_increase(in_market, known, now)[0]
            lines += [
                Advice(f"no GPU runs {how} today in {where}; {more.say}", more.command),
                *_advise_ending_machines(known),
            ]
        elif candidates:
            lines += _advise_unknown(in_market, candidates)
            runs = True
    return [*lines, *([] if runs else _advise_other_regions(asked, places)), MORE_GPUS]


def build_quota_error(asked: Demand, places: Sequence[RegionSurvey], now: float) -> QuotaExceeded:
    """Why nothing is launched, with the command that helps."""
    candidates = list(requested_alternatives(asked, places, asked.market))
    whys = [format_shortfall(candidate) for candidate in first_per_quota(candidates)]
    more = [*_advise_smaller_machines(asked, places, asked.market), *_advise_other_market(asked, places)][:1]
    known = [candidate for candidate in candidates if candidate.free is not None]
    hints = [*_advise_ending_machines(known), *_advise_increase(asked, candidates, now)[:1], *more]
    looks = (
        Advice("what else runs today", build_command(asked, "quota", candidates[0].place.region))
        if candidates
        else Advice("")
    )
    return QuotaExceeded("; ".join(whys), "; or ".join(map(str, [*hints, *([] if more else [looks])])))


def format_shortfall(candidate: Alternative) -> str:
    """By how much the quota is too small for an alternative, in numbers."""
    quota, calculation = candidate.counted, format_calculation(candidate.nodes, candidate.kind.vcpus)
    return (
        f"AWS lets this account use {candidate.limit:g} {UNIT} of {quota.name} ({quota.code}) in {candidate.region}, "
        f"{candidate.used:g} are in use, and {calculation} is {candidate.need}"
    )


def build_command(asked: Demand, command: str, region: str, *more: str) -> str:
    """The command line for a demand: `gpuops quota aws --gpus 4 --nodes 2 --spot --region us-east-1`."""
    name, profile = split_region(region)
    words = ["gpuops", command, "aws"]
    for flag, value in (
        ("gpus", asked.gpus),
        ("nodes", asked.nodes if asked.nodes > 1 else None),
        ("gpu-type", asked.gpu_type),
        ("gpu-mem", asked.gpu_mem),
        ("instance-type", ",".join(asked.types) if asked.types != CPU else None),
    ):
        words += [f"--{flag}", str(value)] if value else []
    words += ["--cpu"] if asked.types == CPU else []
    words += ["--spot"] if asked.market == SPOT else ["--on-demand"] if command == "quota" else []
    words += ["--region", name] if name else []
    words += ["--profile", profile or asked.profile] if profile or asked.profile else []
    return shlex.join([*words, *more])


def _advise_fitting(asked: Demand, fitting: Sequence[Alternative], what: str = "it") -> list[Advice]:
    first = fitting[0]
    others = [candidate.region for candidate in fitting[1:]]
    also = f", and in {first_few(others, MAX_NAMES)}" if others else ""
    free = f"{first.free:g}" if first.free is not None else "?"
    calculation = format_calculation(first.nodes, first.kind.vcpus)
    return [
        Advice(
            f"{what} fits in {first.region}{also}: {calculation} is {first.need}, and {free} are free "
            f"of {first.counted.name}",
            build_command(asked, "up", first.place.region),
        )
    ]


def _advise_unknown(asked: Demand, candidates: Sequence[Alternative]) -> list[Advice]:
    first = candidates[0]
    why = "AWS documents no quota for it" if not first.counted.code else "the quota could not be read"
    return [
        Advice(
            f"whether {first.kind.type} fits in {first.region} is not known ({first.counted.name}: {why}), and that is "
            "no reason not to try",
            build_command(asked, "up", first.place.region),
        )
    ]


def _advise_other_market(asked: Demand, places: Sequence[RegionSurvey]) -> list[Advice]:
    other = ON_DEMAND if asked.market == SPOT else SPOT
    in_other = dataclasses.replace(asked, market=other)
    found = next((candidate for candidate in requested_alternatives(in_other, places, other) if candidate.fits), None)
    if found is None:
        return []
    how = _in_market(other)
    return [
        Advice(
            f"{how} it fits today in {found.region}: {found.need} {UNIT} are needed, and {found.free:g} are free of "
            f"{found.counted.name}",
            build_command(in_other, "up", found.place.region),
        )
    ]


def _advise_fewer_gpus(
    asked: Demand, places: Sequence[RegionSurvey], candidates: Sequence[Alternative]
) -> list[Advice]:
    """Fewer GPUs, where there is room for any."""
    less = [found[0] for place in places if (found := fewer_gpus(asked, place, asked.market))]
    things = "GPUs" if any(candidate.kind.gpus for candidate in candidates) else "machines"
    if less:
        best = max(less, key=lambda candidate: (candidate.gpus, candidate.nodes))
        return [
            Advice(
                f"with fewer {things} something runs today in {best.region}, where {best.free:g} {UNIT} are free: "
                f"{best.say()}",
                build_command(_with_alternative(asked, best), "up", best.place.region),
            )
        ]
    where = first_few([*dict.fromkeys(candidate.region for candidate in candidates)], MAX_NAMES)
    how = _in_market(asked.market)
    what = "nothing with such GPUs" if things == "GPUs" else "no such machine"
    return [Advice(f"{what} runs {how} today in {where}: the {UNIT} that are free are too few for one machine")]


def _advise_smaller_machines(asked: Demand, places: Sequence[RegionSurvey], market: str) -> list[Advice]:
    """As many GPUs in smaller machines that there is room for today."""
    for place in places:
        fitting = [candidate for candidate in same_gpu_count(asked, place, market) if candidate.fits]
        if fitting:
            best = fitting[0]
            return [
                Advice(
                    f"as many GPUs run today in smaller machines in {best.region}, where {best.free:g} {UNIT} are "
                    f"free: {best.say()}{format_equivalents(best, fitting)}",
                    build_command(_with_alternative(asked, best), "up", best.place.region),
                )
            ]
    return []


def _advise_ending_machines(candidates: Sequence[Alternative]) -> list[Advice]:
    """Advice where the quota would suffice if running machines were ended."""
    for candidate in candidates:
        if candidate.used and candidate.need <= candidate.limit:
            return [
                Advice(
                    f"the quota itself is large enough in {candidate.region}: {candidate.limit:g} {UNIT}, of which "
                    f"{candidate.used:g} are in use; end what you no longer need (what has just ended counts for some "
                    "minutes more)",
                    "gpuops status",
                )
            ]
    return []


def _advise_other_regions(asked: Demand, places: Sequence[RegionSurvey]) -> list[Advice]:
    if len(places) > 1:
        return []
    look = build_command(asked, "quota", join_region("all", split_region(places[0].region)[1]))
    return [Advice("quotas are counted by region, and another may have room", look)]


def _advise_first_step(asked: Demand, known: Sequence[Alternative]) -> list[Advice]:
    """Advice for an account whose quotas are all 0: the first step, which is granted soonest."""
    least = min(known, key=lambda candidate: (candidate.total, candidate.kind.type))
    place, counted = least.place, quota_class_of(least.kind.type, ON_DEMAND)
    limits = [place.standing.limits.get(quota_class_of(least.kind.type, market).code) for market in MARKETS]
    if any(limit != 0 for limit in limits) or least.total <= SMALL_VCPUS or least.increases or least.closed:
        return []
    alike = [kind for kind in place.kinds if ON_DEMAND in kind.markets and kind.gpus and not is_legacy(kind)]
    same = [kind for kind in alike if quota_class_of(kind.type, ON_DEMAND) == counted and kind.vcpus <= SMALL_VCPUS]
    small = min(same, key=lambda kind: (kind.vcpus, kind.type), default=None)
    if small is None:
        return []
    nodes = SMALL_VCPUS // small.vcpus
    wish = dataclasses.replace(asked.with_type(small), nodes=nodes, gpus=small.gpus, gpu_mem=None, market=ON_DEMAND)
    total = str(nodes * small.vcpus)
    return [
        Advice(
            f"from 0 a small step is granted sooner: first {total} {UNIT} on demand, then more, then spot",
            build_command(wish, "quota", place.region, "--request", total),
        )
    ]


def _advise_increase(asked: Demand, candidates: Sequence[Alternative], now: float) -> list[Advice]:
    """The smallest sufficient increase, and the smallest one for as many GPUs in smaller machines."""
    known = [candidate for candidate in candidates if candidate.free is not None]
    if not known:
        return []
    least = min(known, key=lambda candidate: candidate.need - (candidate.free or 0.0))
    if least.increases:
        return [_advise_open_increase(asked, least, least.increases[0], now)]
    if increase := least.closed:
        since = f", {days} ago" if (days := _age_in_days(increase, now)) else ""
        return [
            Advice(
                f"AWS was asked for {increase.wanted:g} {UNIT} of {least.counted.name} in {least.region} "
                f"({increase.status}{since}), and they are not there: reply in its case rather than ask anew, and say "
                f"what for ({case_link(increase)})"
            )
        ]
    codes = {candidate.counted.code for candidate in known if candidate.place is least.place}
    which = ["--code", least.counted.code] if len(codes) > 1 else []
    in_use = f" + {least.used:g} in use" if least.used else ""
    found = [
        Advice(
            f"the smallest increase that would do is to {least.total} {UNIT} in {least.region} "
            f"({format_calculation(least.nodes, least.kind.vcpus)}{in_use})",
            build_command(asked, "quota", least.place.region, *which, "--request", str(least.total)),
        )
    ]
    smaller = [
        candidate
        for candidate in same_gpu_count(asked, least.place, asked.market)
        if candidate.counted == least.counted
    ]
    if smaller and smaller[0].total < least.total:
        best = smaller[0]
        found.append(
            Advice(
                "a smaller one would do for as many GPUs in smaller machines: "
                f"{best.say()}{format_equivalents(best, smaller)}",
                build_command(_with_alternative(asked, best), "quota", best.place.region, "--request", str(best.total)),
            )
        )
    return found


def _age_in_days(increase: QuotaIncrease, now: float) -> str:
    days = int((now - increase.created) // 86400) if increase.created is not None else 0
    return plural(days, "day") if days > 0 else ""


def _advise_open_increase(asked: Demand, candidate: Alternative, increase: QuotaIncrease, now: float) -> Advice:
    since = f", for {days}" if (days := _age_in_days(increase, now)) else ""
    enough = (
        "would do"
        if increase.wanted >= candidate.total
        else f"is less than the {candidate.total} that would do, and one is open at a time"
    )
    case = f"; its case: {case_link(increase)}" if increase.case else ""
    return Advice(
        f"AWS has yet to decide on {increase.wanted:g} {UNIT} of {candidate.counted.name} in {candidate.region} "
        f"({increase.status}{since}{case}), which {enough}",
        build_command(asked, "quota", candidate.place.region, "--watch"),
    )


def _with_alternative(asked: Demand, candidate: Alternative) -> Demand:
    """The same demand with this candidate's machines."""
    return dataclasses.replace(
        asked.with_type(candidate.kind), nodes=candidate.nodes, gpus=candidate.kind.gpus or None, gpu_mem=None
    )


def _in_market(market: str) -> str:
    return "as spot" if market == SPOT else "on demand"
