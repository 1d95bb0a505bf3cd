"""What to do about a request for more quota that AWS has not granted, or not yet. Pure.

A request by the API opens a support case without a word of what the quota is for. New accounts that asked for 4 to 8
vCPU were refused with the same text each time; who replied in the same case had it within one to four days (field
reports of five accounts). Such a case may be CASE_CLOSED before it is granted, and after it. A grant takes effect
within an hour (AWS, "Requesting a quota increase").
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuops.core.errors import QuotaExceeded
from gpuops.core.format import plural
from gpuops.core.quota import Quota, QuotaIncrease
from provisioners.aws.alternatives import (
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
from provisioners.aws.api import split_region
from provisioners.aws.catalog import is_legacy
from provisioners.aws.options import CPU
from provisioners.aws.quotas import MARKETS, ON_DEMAND, SPOT, UNIT, case_link, format_calculation, quota_class_of

GRANT_DELAY_S = 3600.0
"""A quota may still change for this long after its case was closed."""
GRANT_DELAY_NOTE = "a grant takes effect within an hour: the quota is looked at until then"
SMALL_VCPUS = 8
"""vCPU: a first request for more than that is rarely granted to a new account."""


def may_still_be_granted(one: QuotaIncrease, now: float) -> bool:
    """Whether a request that was closed without a decision may still be granted."""
    since = one.decided if one.decided is not None else one.created
    return since is not None and now - since < GRANT_DELAY_S


def advise_on_refusal(quota: Quota, one: QuotaIncrease) -> tuple[str, ...]:
    """What to do about one that was not granted, with a text to reply with."""
    machines = f"{quota.machines} ({quota.sum})" if quota.machines else "N x TYPE"
    return (
        f"reply in its case, and file no new request; most are granted then: {case_link(one)}",
        "a text to begin with (fill in HOURS and AMOUNT):",
        f"  Please set {quota.name} ({quota.code}) in {quota.region.partition('@')[0]} to {one.wanted:g} {quota.unit}.",
        f"  I train neural networks with PyTorch on {machines}, about HOURS hours a month.",
        "  Each machine ends with its run, and by a watchdog after 24 hours. A budget of $AMOUNT a month has an alarm.",
    )


MAX_NAMES = 3
"""Regions that one sentence names."""


@dataclass(frozen=True)
class Advice:
    say: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.say}: {self.command}" if self.command else self.say


MORE_GPUS = Advice("that is for one GPU, with --gpus N for more, and --nodes N for several machines")


def advise_on_request(asked: Demand, places: Sequence[RegionSurvey], now: float) -> list[Advice]:
    """Everything worth knowing, the most useful first."""
    ways = list(requested_alternatives(asked, places, asked.market))
    if not ways:
        return []
    fitting = first_per_region(way for way in ways if way.fits)
    if fitting:
        return _advise_fitting(asked, fitting)
    unknown = [way for way in ways if way.free is None]
    known = [way for way in ways if way.free is not None]
    elsewhere = _advise_other_market(asked, places)
    if not known:
        return [*_advise_unknown(asked, unknown), *elsewhere]
    if same := _advise_smaller_machines(asked, places, asked.market):
        lines = [
            *elsewhere,
            *same,
            *_advise_ending_machines(known),
            *_advise_other_regions(asked, places),
            *_advise_increase(asked, known, now)[:1],
        ]
    else:
        less = _advise_fewer_gpus(asked, places, known)
        increase = [*_advise_first_step(asked, known), *_advise_increase(asked, known, now)]
        lines = [*elsewhere, *less, *_advise_ending_machines(known), *_advise_other_regions(asked, places), *increase]
    return [*lines, *(_advise_unknown(_just(asked, unknown[0]), unknown) if unknown else [])]


def advise_for_one_gpu(asked: Demand, places: Sequence[RegionSurvey], now: float) -> list[Advice]:
    """Advice for a request without GPUs: for one GPU, in both markets, since none was chosen."""
    if not any(place.chosen for place in places):
        return []
    asked = dataclasses.replace(asked, nodes=1, gpus=1)
    lines: list[Advice] = []
    runs = False
    for market in (asked.market, SPOT if asked.market == ON_DEMAND else ON_DEMAND):
        there = dataclasses.replace(asked, market=market)
        ways = list(requested_alternatives(there, places, market))
        known = [way for way in ways if way.free is not None]
        how = "as spot" if market == SPOT else "on demand"
        if fitting := first_per_region(way for way in ways if way.fits):
            runs = True
            lines += _advise_fitting(there, fitting, f"{how} one GPU")
        elif known:
            where = _join_regions(dict.fromkeys(way.region for way in known))
            more = _advise_increase(there, known, now)[0]
            lines += [
                Advice(f"no GPU runs {how} today in {where}; {more.say}", more.command),
                *_advise_ending_machines(known),
            ]
        elif ways:
            lines += _advise_unknown(there, ways)
            runs = True
    return [*lines, *([] if runs else _advise_other_regions(asked, places)), MORE_GPUS]


def _just(asked: Demand, way: Alternative) -> Demand:
    return asked.with_type(way.kind)


def build_quota_error(asked: Demand, places: Sequence[RegionSurvey], now: float) -> QuotaExceeded:
    """Why nothing is launched, with the command that helps."""
    ways = list(requested_alternatives(asked, places, asked.market))
    whys = [format_shortfall(way) for way in first_per_quota(ways)]
    more = [*_advise_smaller_machines(asked, places, asked.market), *_advise_other_market(asked, places)][:1]
    known = [way for way in ways if way.free is not None]
    hints = [*_advise_ending_machines(known), *_advise_increase(asked, ways, now)[:1], *more]
    looks = Advice("what else runs today", build_command(asked, "quota", ways[0].place.region)) if ways else Advice("")
    return QuotaExceeded("; ".join(whys), "; or ".join(map(str, [*hints, *([] if more else [looks])])))


def format_shortfall(way: Alternative) -> str:
    """By how much the quota is too small for an alternative, in numbers."""
    limit = way.place.standing.limits.get(way.counted.code, 0.0)
    return (
        f"AWS lets this account use {limit:g} {UNIT} of {way.counted.name} ({way.counted.code}) in {way.region}, "
        f"{way.used:g} are in use, and {format_calculation(way.nodes, way.kind.vcpus)} is {way.need}"
    )


def build_command(asked: Demand, what: str, region: str, *more: str) -> str:
    """The line that says what is asked for: `gpuops quota aws --gpus 4 --nodes 2 --spot --region us-east-1`."""
    name, profile = split_region(region)
    words = ["gpuops", what, "aws"]
    for flag, value in (
        ("gpus", asked.gpus),
        ("nodes", asked.nodes if asked.nodes > 1 else None),
        ("gpu-type", asked.gpu_type),
        ("gpu-mem", asked.gpu_mem),
        ("instance-type", asked.types if asked.types != CPU else None),
    ):
        words += [f"--{flag}", str(value)] if value else []
    words += ["--cpu"] if asked.types == CPU else []
    words += ["--spot"] if asked.market == SPOT else ["--on-demand"] if what == "quota" else []
    words += ["--region", name] if name else []
    words += ["--profile", profile or asked.profile] if profile or asked.profile else []
    return shlex.join([*words, *more])


def _advise_fitting(asked: Demand, fitting: Sequence[Alternative], what: str = "it") -> list[Advice]:
    first = fitting[0]
    others = [way.region for way in fitting[1:]]
    also = f", and in {_join_regions(others)}" if others else ""
    free = f"{first.free:g}" if first.free is not None else "?"
    calculation = format_calculation(first.nodes, first.kind.vcpus)
    return [
        Advice(
            f"{what} fits in {first.region}{also}: {calculation} is {first.need}, and {free} are free "
            f"of {first.counted.name}",
            build_command(asked, "up", first.place.region),
        )
    ]


def _advise_unknown(asked: Demand, ways: Sequence[Alternative]) -> list[Advice]:
    first = ways[0]
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
    there = dataclasses.replace(asked, market=other)
    found = next((way for way in requested_alternatives(there, places, other) if way.fits), None)
    if found is None:
        return []
    how = "as spot" if other == SPOT else "on demand"
    return [
        Advice(
            f"{how} it fits today in {found.region}: {found.need} {UNIT} are needed, and {found.free:g} are free of "
            f"{found.counted.name}",
            build_command(there, "up", found.place.region),
        )
    ]


def _advise_fewer_gpus(asked: Demand, places: Sequence[RegionSurvey], ways: Sequence[Alternative]) -> list[Advice]:
    """Fewer GPUs, where there is room for any."""
    less = [found[0] for place in places if (found := fewer_gpus(asked, place, asked.market))]
    things = "GPUs" if any(way.kind.gpus for way in ways) else "machines"
    if less:
        best = max(less, key=lambda way: (way.gpus, way.nodes))
        return [
            Advice(
                f"with fewer {things} something runs today in {best.region}, where {best.free:g} {UNIT} are free: "
                f"{best.say()}",
                build_command(_with_alternative(asked, best), "up", best.place.region),
            )
        ]
    where = _join_regions(dict.fromkeys(way.region for way in ways))
    how = "as spot" if asked.market == SPOT else "on demand"
    what = "nothing with such GPUs" if things == "GPUs" else "no such machine"
    return [Advice(f"{what} runs {how} today in {where}: the {UNIT} that are free are too few for one machine")]


def _advise_smaller_machines(asked: Demand, places: Sequence[RegionSurvey], market: str) -> list[Advice]:
    """As many GPUs in smaller machines that there is room for today."""
    for place in places:
        fitting = [way for way in same_gpu_count(asked, place, market) if way.fits]
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


def _advise_ending_machines(ways: Sequence[Alternative]) -> list[Advice]:
    """Advice where the quota would suffice if running machines were ended."""
    for way in ways:
        limit = way.place.standing.limits.get(way.counted.code, 0.0)
        if way.used and way.need <= limit:
            return [
                Advice(
                    f"the quota itself is large enough in {way.region}: {limit:g} {UNIT}, of which {way.used:g} are in "
                    "use; end what you no longer need (what has just ended counts for some minutes more)",
                    "gpuops status",
                )
            ]
    return []


def _advise_other_regions(asked: Demand, places: Sequence[RegionSurvey]) -> list[Advice]:
    if len(places) > 1:
        return []
    look = build_command(
        asked, "quota", "all" + "@" * bool(split_region(places[0].region)[1]) + split_region(places[0].region)[1]
    )
    return [Advice("quotas are counted by region, and another may have room", look)]


def _advise_first_step(asked: Demand, known: Sequence[Alternative]) -> list[Advice]:
    """Advice for an account whose quotas are all 0: the first step, which is granted soonest."""
    least = min(known, key=lambda way: (way.total, way.kind.type))
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


def _advise_increase(asked: Demand, ways: Sequence[Alternative], now: float) -> list[Advice]:
    """The smallest sufficient increase, and the smallest one for as many GPUs in smaller machines."""
    known = [way for way in ways if way.free is not None]
    if not known:
        return []
    least = min(known, key=lambda way: way.need - (way.free or 0.0))
    if least.increases:
        return [_advise_open_increase(asked, least, least.increases[0], now)]
    if one := least.closed:
        since = f", {days} ago" if (days := _age_in_days(one, now)) else ""
        return [
            Advice(
                f"AWS was asked for {one.wanted:g} {UNIT} of {least.counted.name} in {least.region} "
                f"({one.status}{since}), and they are not there: reply in its case rather than ask anew, and say what "
                f"for ({case_link(one)})"
            )
        ]
    codes = {way.counted.code for way in known if way.place is least.place}
    which = ["--code", least.counted.code] if len(codes) > 1 else []
    in_use = f" + {least.used:g} in use" if least.used else ""
    found = [
        Advice(
            f"the smallest increase that would do is to {least.total} {UNIT} in {least.region} "
            f"({format_calculation(least.nodes, least.kind.vcpus)}{in_use})",
            build_command(asked, "quota", least.place.region, *which, "--request", str(least.total)),
        )
    ]
    smaller = [way for way in same_gpu_count(asked, least.place, asked.market) if way.counted == least.counted]
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


def _age_in_days(one: QuotaIncrease, now: float) -> str:
    days = int((now - one.created) // 86400) if one.created is not None else 0
    return plural(days, "day") if days > 0 else ""


def _advise_open_increase(asked: Demand, way: Alternative, one: QuotaIncrease, now: float) -> Advice:
    since = f", for {days}" if (days := _age_in_days(one, now)) else ""
    enough = (
        "would do"
        if one.wanted >= way.total
        else f"is less than the {way.total} that would do, and one is open at a time"
    )
    return Advice(
        f"AWS has yet to decide on {one.wanted:g} {UNIT} of {way.counted.name} in {way.region} ({one.status}{since}"
        f"{f'; its case: {case_link(one)}' if one.case else ''}), which {enough}",
        build_command(asked, "quota", way.place.region, "--watch"),
    )


def _with_alternative(asked: Demand, way: Alternative) -> Demand:
    """The same wish with this way's machines."""
    return dataclasses.replace(asked.with_type(way.kind), nodes=way.nodes, gpus=way.kind.gpus or None, gpu_mem=None)


def _join_regions(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - MAX_NAMES
    return ", ".join(known[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
