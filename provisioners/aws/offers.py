"""From AWS's answers to offers: type by type and zone by zone, priced and held against the quotas.

In the order in which they are tried: regions by their cheapest offer, in a region types by theirs, of a type the zones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from gpuops.core.errors import NoCapacity, ProviderError, UsageError
from gpuops.core.format import first_few
from gpuops.core.models import Offer, Price
from provisioners.aws import images, launch, pricing, quota_advice, quota_report, quotas, reservations
from provisioners.aws.account import Account
from provisioners.aws.alternatives import Alternative, Demand, RegionSurvey
from provisioners.aws.api import ask_all, split_region
from provisioners.aws.catalog import InstanceType
from provisioners.aws.options import Wishes
from provisioners.aws.quota_report import MAX_REGIONS_AT_ONCE, build_demand
from provisioners.aws.quotas import SPOT, UNIT, QuotaClass, quota_class_of
from provisioners.aws.stock import RegionStock, is_prepaid, read_stock

MAX_NAMES = 4
"""Types that one sentence names."""
CAPACITY_BLOCKS = QuotaClass("", "Capacity Blocks", reservations.BLOCK)
"""Counts nothing: a block is as large as it was bought."""
UNPRICED_NOTE = "{}: the price of {} is not known, and counted as --max-price allows; look it up, for AWS may bill more"


def find_offers(account: Account, given: Wishes, regions: Sequence[str]) -> list[Offer]:
    """Best first. Raises UsageError, NoCapacity, QuotaExceeded, or the error of a region where none could be read."""
    if given.reservation:
        given, regions = reservations.applied(account, given, regions)
    asked = build_demand(given)
    regions = _regions_of_zone(regions, given.zone) if given.zone else regions
    found = ask_all(
        {region: partial(read_stock, account, region, given, asked) for region in regions}, MAX_REGIONS_AT_ONCE
    )
    stocks = [one for one in found.values() if isinstance(one, RegionStock)]
    found = {
        region: one if isinstance(one, RegionStock) else account.explain(region, one) for region, one in found.items()
    }
    if not stocks:
        raise _most_transient(found.values())
    notes = [
        f"{split_region(region)[0]}: {one.say}" for region, one in found.items() if not isinstance(one, RegionStock)
    ]
    made: list[Offer] = []
    short: list[Alternative] = []
    for stock in stocks:
        able, unable = _split_by_quota(stock, given)
        short += unable
        made += [_build_offer(stock, kind, zone, price, given) for kind, zone, price in able]
    if not made:
        raise quota_advice.build_quota_error(asked, _survey_in_full(account, stocks, asked), account.clock.now())
    notes += [_format_left_out(asked, candidates) for candidates in _group_by_quota(short)]
    first, *rest = rank_offers(made)
    return [dataclasses.replace(first, notes=(*first.notes, *notes)), *rest]


def _regions_of_zone(regions: Sequence[str], zone: str) -> list[str]:
    found = [region for region in regions if zone.startswith(split_region(region)[0])]
    if not found:
        names = ", ".join(split_region(region)[0] for region in regions)
        raise UsageError(f"the zone {zone} is not in {names}", f"name its region as well: --region {zone[:-1]}")
    return found


def rank_offers(made: Iterable[Offer]) -> list[Offer]:
    cheapest: dict[tuple[str, ...], float] = {}
    listed = list(made)
    for one in listed:
        for key in ((one.region,), (one.region, one.data["type"])):
            cheapest[key] = min(one.per_hour, cheapest.get(key, one.per_hour))

    def order(one: Offer) -> tuple[Any, ...]:
        kind = str(one.data["type"])
        dearest = cheapest[one.region, kind], int(one.data.get("vcpus") or 0)
        return cheapest[one.region,], one.region, *dearest, kind, one.per_hour, one.data["zone"]

    return sorted(listed, key=order)


def _most_transient(errors: Iterable[Any]) -> ProviderError | UsageError:
    """Of several regions without anything the reason that may pass: it is the one worth to wait for."""
    listed = list(errors)
    found: ProviderError | UsageError = next((one for one in listed if isinstance(one, NoCapacity)), listed[0])
    return found


def _split_by_quota(
    stock: RegionStock, given: Wishes
) -> tuple[list[tuple[InstanceType, str, float]], list[Alternative]]:
    """What the quotas let us have, or may; and the candidates that they do not."""
    short: dict[str, Alternative] = {}
    able = []
    for kind, zone, price in stock.priced:
        candidate = _as_alternative(stock, kind, given)
        if candidate.free is not None and not candidate.fits:
            short[kind.type] = candidate
        else:
            able.append((kind, zone, price))
    return able, list(short.values())


def _as_alternative(stock: RegionStock, kind: InstanceType, given: Wishes) -> Alternative:
    counted = CAPACITY_BLOCKS if is_prepaid(given) else quota_class_of(kind.type, build_demand(given).market)
    return Alternative(stock.place, kind, given.nodes, counted)


def _group_by_quota(short: Sequence[Alternative]) -> list[list[Alternative]]:
    groups: dict[tuple[str, str], list[Alternative]] = {}
    for candidate in sorted(short, key=lambda candidate: (candidate.need, candidate.kind.type)):
        groups.setdefault((candidate.place.region, candidate.counted.code), []).append(candidate)
    return list(groups.values())


def _format_left_out(asked: Demand, candidates: Sequence[Alternative]) -> str:
    names = first_few([candidate.kind.type for candidate in candidates], MAX_NAMES)
    least = asked.with_type(candidates[0].kind)
    to_type = quota_advice.build_command(least, "quota", candidates[0].place.region)
    return f"left out: {names}: {quota_advice.format_shortfall(candidates[0])}: {to_type}"


def _survey_in_full(account: Account, stocks: Sequence[RegionStock], asked: Demand) -> list[RegionSurvey]:
    """The same places with the other market, and with their open requests for more, as far as those may be seen."""
    told = ask_all(
        {one.place.region: partial(_read_in_full, account, one.place, asked) for one in stocks}, MAX_REGIONS_AT_ONCE
    )
    return [found if isinstance(found := told[one.place.region], RegionSurvey) else one.place for one in stocks]


def _read_in_full(account: Account, place: RegionSurvey, asked: Demand) -> RegionSurvey:
    vcpus = {kind.type: kind.vcpus for kind in place.kinds}
    standing = quotas.read_account_quotas(account, place.region, quotas.ALL_CLASSES, lambda: vcpus, history=True)
    chosen = {**quota_report.select_by_market(place.kinds, asked, place.region), **place.chosen}
    return dataclasses.replace(place, standing=standing, chosen=chosen)


def _build_offer(stock: RegionStock, kind: InstanceType, zone: str, price: float, given: Wishes) -> Offer:
    base, nodes = stock.base, given.nodes
    market = reservations.BLOCK if is_prepaid(given) else build_demand(given).market
    net = base.subnets[zone]
    disk = max(given.disk, base.image.root_gb)
    candidate = _as_alternative(stock, kind, given)
    costs = [
        Price(f"{nodes} x {kind.type}, {market}{stock.unpriced and ', at most'}", round(price * nodes, 6)),
        Price(f"{nodes} x {disk} GB of disk (gp3)", round(base.disk * disk * nodes, 6)),
        *([Price(f"{nodes} x public IPv4 address", round(pricing.ADDRESS_HOURLY * nodes, 6))] if net.public else []),
    ]
    per_hour = sum(cost.per_hour for cost in costs)
    count = (f"{nodes} x {kind.gpus}" if nodes > 1 else str(kind.gpus)) if kind.gpus else ""
    return Offer(
        provider="aws",
        id=f"{base.region}/{zone}/{kind.type}/{market}",
        say=f"{nodes} x {kind.type} ({kind.say}) in {zone}, {market}",
        nodes=nodes,
        gpus=kind.gpus,
        region=base.region,
        prices=tuple(costs),
        notes=(
            *_build_notes(candidate, base.image),
            *([UNPRICED_NOTE.format(stock.unpriced, kind.type)] if stock.unpriced else []),
        ),
        data={
            "columns": {
                "TYPE": kind.type,
                "GPU": kind.gpu or "none",
                "MEMORY": f"{kind.memory} GB" if kind.gpus else "",
                "COUNT": count,
                UNIT.upper(): f"{nodes} x {kind.vcpus}" if nodes > 1 else str(kind.vcpus),
                "ZONE": zone,
                "MARKET": market,
                "$/H": f"${per_hour:.2f}",
            },
            "region": base.region,
            "zone": zone,
            "place": zone,
            "type": kind.type,
            "market": SPOT if given.spot else market,
            "gpus": kind.gpus,
            "vcpus": kind.vcpus,
            "quota": f"{base.region}/{candidate.counted.code}" if candidate.counted.code else "",
            "price": price,
            **base.image.data,
            "ami_ours": not given.ami,
            "disk": disk,
            "subnet": net.subnet,
            "vpc": net.vpc,
            "public": net.public,
            "security_group": given.security_group,
            "launch": launch.optional_parameters(given),
            "ends": given.reserved.ends if given.reserved else None,
            "ssh_from": given.ssh_from,
        },
    )


def _build_notes(candidate: Alternative, image: images.Image) -> list[str]:
    notes = [image.note] if image.note else []
    if candidate.free is None and candidate.counted != CAPACITY_BLOCKS:
        why = candidate.place.standing.why
        because = why.get(candidate.counted.code) or why.get("used") or "AWS documents none for it"
        notes.append(f"whether the quota allows {candidate.kind.type} is not known ({because}): AWS may still say no")
    return notes
