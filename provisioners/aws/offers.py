"""Offers of AWS: one for each instance type in each zone, priced and compared with the account's quotas.

In the order in which they are tried: regions by their cheapest offer, in a region types by theirs, of a type the zones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial

from gpuops.core.errors import NoCapacity, ProviderError, UsageError
from gpuops.core.format import first_few
from gpuops.core.models import Offer, Price
from provisioners.aws import images, launch, pricing, quota_advice, quota_report, quotas, reservations
from provisioners.aws.account import Account
from provisioners.aws.api import split_region
from provisioners.aws.capacity import PricedType, RegionStock, is_prepaid, read_stock
from provisioners.aws.catalog import InstanceType
from provisioners.aws.instance_alternatives import Alternative, Demand, RegionSurvey
from provisioners.aws.options import Wishes
from provisioners.aws.quota_report import MAX_REGIONS_AT_ONCE, build_demand
from provisioners.aws.quotas import UNIT, QuotaClass, quota_class_of
from provisioners.kit.calls import ask_all
from provisioners.kit.machine_offer import MachineOffer

MAX_NAMES = 4
"""Types that one sentence names."""
CAPACITY_BLOCKS = QuotaClass("", "Capacity Blocks", reservations.BLOCK)
"""Counts nothing: a block is as large as it was bought."""
UNPRICED_NOTE = "{}: the price of {} is not known, and counted as --max-price allows; look it up, for AWS may bill more"


def find_offers(account: Account, wishes: Wishes, regions: Sequence[str]) -> list[Offer]:
    """Best first. Raises UsageError, NoCapacity, QuotaExceeded, or the error of a region where none could be read."""
    if wishes.reservation:
        found, region = reservations.find_reservation(account, wishes.reservation, wishes.nodes, regions)
        wishes = dataclasses.replace(wishes, types=(found.type,), zone=found.zone, reserved=found)
        regions = [region]
    demand = build_demand(wishes)
    regions = _regions_of_zone(regions, wishes.zone) if wishes.zone else regions
    calls = {region: partial(read_stock, account, region, wishes, demand) for region in regions}
    stocks: list[RegionStock] = []
    errors: dict[str, ProviderError | UsageError] = {}
    for region, answer in ask_all(calls, MAX_REGIONS_AT_ONCE).items():
        if isinstance(answer, RegionStock):
            stocks.append(answer)
        else:
            errors[region] = account.explain(region, answer)
    if not stocks:
        raise _most_transient(list(errors.values()))
    offers: list[Offer] = []
    above_quota: list[Alternative] = []
    for stock in stocks:
        allowed, refused = _split_by_quota(stock, wishes)
        above_quota += refused
        offers += [_build_offer(stock, priced, wishes) for priced in allowed]
    if not offers:
        raise quota_advice.build_quota_error(demand, _survey_in_full(account, stocks, demand), account.clock.now())
    notes = [f"{split_region(region)[0]}: {error.message}" for region, error in errors.items()]
    notes += [_format_left_out(demand, candidates) for candidates in _group_by_quota(above_quota)]
    first, *rest = rank_offers(offers)
    return [dataclasses.replace(first, notes=(*first.notes, *notes)), *rest]


def _regions_of_zone(regions: Sequence[str], zone: str) -> list[str]:
    found = [region for region in regions if zone.startswith(split_region(region)[0])]
    if not found:
        names = ", ".join(split_region(region)[0] for region in regions)
        raise UsageError(f"the zone {zone} is not in {names}", f"name its region as well: --region {zone[:-1]}")
    return found


def rank_offers(offers: Sequence[Offer]) -> list[Offer]:
    """In the order in which they are tried: by the cheapest of the region, the cheapest of the type, the zone's."""
    cheapest: dict[tuple[str, ...], float] = {}
    for offer in offers:
        for key in ((offer.region,), (offer.region, launch.parse_offer(offer).type)):
            cheapest[key] = min(offer.per_hour, cheapest.get(key, offer.per_hour))

    def order(offer: Offer) -> tuple[float, str, float, float, str, float, str]:
        spec, region = launch.parse_offer(offer), offer.region
        cheapest_of_type = cheapest[region, spec.type]
        return cheapest[region,], region, cheapest_of_type, spec.vcpus, spec.type, offer.per_hour, spec.zone

    return sorted(offers, key=order)


def _most_transient(errors: Sequence[ProviderError | UsageError]) -> ProviderError | UsageError:
    """Of several regions' errors the one that may pass: it is worth to wait for."""
    return next((error for error in errors if isinstance(error, NoCapacity)), errors[0])


def _split_by_quota(stock: RegionStock, wishes: Wishes) -> tuple[list[PricedType], list[Alternative]]:
    """What the quotas allow, or may allow; and what they do not, once for each type."""
    above_quota: dict[str, Alternative] = {}
    allowed = []
    for priced in stock.priced:
        candidate = _as_alternative(stock, priced.kind, wishes)
        if candidate.free is not None and not candidate.fits:
            above_quota[priced.kind.type] = candidate
        else:
            allowed.append(priced)
    return allowed, list(above_quota.values())


def _as_alternative(stock: RegionStock, kind: InstanceType, wishes: Wishes) -> Alternative:
    counted = CAPACITY_BLOCKS if is_prepaid(wishes) else quota_class_of(kind.type, build_demand(wishes).market)
    return Alternative(stock.place, kind, wishes.nodes, counted)


def _group_by_quota(candidates: Sequence[Alternative]) -> list[list[Alternative]]:
    groups: dict[tuple[str, str], list[Alternative]] = {}
    for candidate in sorted(candidates, key=lambda candidate: (candidate.need, candidate.kind.type)):
        groups.setdefault((candidate.place.region, candidate.counted.code), []).append(candidate)
    return list(groups.values())


def _format_left_out(demand: Demand, candidates: Sequence[Alternative]) -> str:
    names = first_few([candidate.kind.type for candidate in candidates], MAX_NAMES)
    least = demand.with_type(candidates[0].kind)
    to_type = quota_advice.build_command(least, "quota", candidates[0].place.region)
    return f"left out: {names}: {quota_advice.format_shortfall(candidates[0])}: {to_type}"


def _survey_in_full(account: Account, stocks: Sequence[RegionStock], demand: Demand) -> list[RegionSurvey]:
    """The same places with the other market, and with their open requests for more, as far as those may be seen."""
    calls = {stock.place.region: partial(_read_in_full, account, stock.place, demand) for stock in stocks}
    answers = ask_all(calls, MAX_REGIONS_AT_ONCE)
    surveys = [(stock.place, answers[stock.place.region]) for stock in stocks]
    return [answer if isinstance(answer, RegionSurvey) else known for known, answer in surveys]


def _read_in_full(account: Account, place: RegionSurvey, demand: Demand) -> RegionSurvey:
    vcpus = {kind.type: kind.vcpus for kind in place.kinds}
    standing = quotas.read_account_quotas(account, place.region, quotas.ALL_CLASSES, lambda: vcpus, history=True)
    chosen = {**quota_report.select_by_market(place.kinds, demand, place.region), **place.chosen}
    return dataclasses.replace(place, standing=standing, chosen=chosen)


def _build_offer(stock: RegionStock, priced: PricedType, wishes: Wishes) -> Offer:
    kind, zone, price = priced.kind, priced.zone, priced.per_hour
    base, nodes = stock.base, wishes.nodes
    market = _market(wishes)
    net = base.subnets[zone]
    disk = _disk_gb(stock, wishes)
    candidate = _as_alternative(stock, kind, wishes)
    costs = [
        Price(f"{nodes} x {kind.type}, {market}{stock.unpriced and ', at most'}", round(price * nodes, 6)),
        Price(f"{nodes} x {disk} GB of disk (gp3)", round(base.disk * disk * nodes, 6)),
        *([Price(f"{nodes} x public IPv4 address", round(pricing.ADDRESS_HOURLY * nodes, 6))] if net.public else []),
    ]
    per_hour = sum(cost.per_hour for cost in costs)
    return MachineOffer(
        id=f"{base.region}/{zone}/{kind.type}/{market}",
        say=f"{nodes} x {kind.type} ({kind.say}) in {zone}, {market}",
        prices=costs,
        gpu=kind.gpu,
        gpus=kind.gpus,
        memory=kind.memory,
        where=zone,
        region=base.region,
        nodes=nodes,
        type=kind.type,
        vcpus=kind.vcpus,
        disk=disk,
        spot=market == "spot",
        notes=(
            *_build_notes(candidate, base.image),
            *([UNPRICED_NOTE.format(stock.unpriced, kind.type)] if stock.unpriced else []),
        ),
        columns={
            UNIT.upper(): f"{nodes} x {kind.vcpus}" if nodes > 1 else str(kind.vcpus),
            "ZONE": zone,
            "MARKET": market,
        },
    ).build(
        "aws",
        region=base.region,
        place=zone,
        gpus=kind.gpus,
        quota=f"{base.region}/{candidate.counted.code}" if candidate.counted.code else "",
        price=price,
        ami_name=base.image.name,
        ends=wishes.reserved.ends if wishes.reserved else None,
        **_launch_spec(stock, priced, wishes, per_hour / nodes).document(),
    )


def _find_spot_most(wishes: Wishes, price: float, per_hour: float) -> float | None:
    """What `--max-price` leaves for one spot machine, in $/h; None without it, and where it leaves less than it costs
    now, so that the offer is not accepted. `price`: of the machine alone; `per_hour`: with disk and address."""
    if not wishes.spot or wishes.max_price is None:
        return None
    most = math.floor((wishes.max_price / wishes.nodes - (per_hour - price)) * 1e4) / 1e4
    return most if most >= price else None


def _launch_spec(stock: RegionStock, priced: PricedType, wishes: Wishes, per_hour: float) -> launch.LaunchSpec:
    """`per_hour`: $/h of one machine."""
    kind, zone, image, net = priced.kind, priced.zone, stock.base.image, stock.base.subnets[priced.zone]
    return launch.LaunchSpec(
        region=stock.base.region,
        zone=zone,
        nodes=wishes.nodes,
        gpus=kind.gpus,
        type=kind.type,
        vcpus=kind.vcpus,
        market=_market(wishes),
        per_hour=per_hour,
        spot_most=_find_spot_most(wishes, priced.per_hour, per_hour),
        ami=image.id,
        is_default_image=not wishes.ami,
        user=image.user,
        root_device=image.root_device,
        other_devices=image.devices,
        disk_gb=_disk_gb(stock, wishes),
        subnet=net.subnet,
        vpc=net.vpc,
        has_public_address=net.public,
        security_group=wishes.security_group,
        ssh_from=wishes.ssh_from,
        more_parameters=launch.optional_parameters(wishes),
    )


def _market(wishes: Wishes) -> str:
    return reservations.BLOCK if is_prepaid(wishes) else build_demand(wishes).market


def _disk_gb(stock: RegionStock, wishes: Wishes) -> int:
    return max(wishes.disk, stock.base.image.root_gb)


def _build_notes(candidate: Alternative, image: images.Image) -> list[str]:
    notes = [image.note] if image.note else []
    if candidate.free is None and candidate.counted != CAPACITY_BLOCKS:
        why = candidate.place.standing.why
        because = why.get(candidate.counted.code) or why.get("used") or "AWS documents none for it"
        notes.append(f"whether the quota allows {candidate.kind.type} is not known ({because}): AWS may still say no")
    return notes
