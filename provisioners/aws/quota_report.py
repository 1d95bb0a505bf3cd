"""What `gpuops quota aws` asks AWS, region by region and side by side, and what it files there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from gpuops.core.errors import ProviderError, UsageError
from gpuops.core.format import first_few
from gpuops.core.models import Request
from gpuops.core.quota import Quota, QuotaIncrease, QuotaReport
from provisioners.aws import catalog, quota_advice
from provisioners.aws.account import Account, Plan
from provisioners.aws.api import ask, split_region
from provisioners.aws.catalog import InstanceType
from provisioners.aws.errors import FREE_PLAN, code
from provisioners.aws.instance_alternatives import Demand, RegionSurvey
from provisioners.aws.options import Wishes, wishes
from provisioners.aws.quotas import (
    ALL_CLASSES,
    G_ON_DEMAND,
    G_SPOT,
    GPU_CLASSES,
    MARKETS,
    ON_DEMAND,
    SERVICE,
    SPOT,
    QuotaClass,
    build_quota,
    is_unreadable,
    parse_increase,
    quota_class_of,
    read_account_quotas,
    read_increases,
    read_limit,
    select_increases,
)
from provisioners.kit.calls import ask_all

ALL_REGIONS = "all"
MAX_REGIONS_AT_ONCE = 4
"""Each region makes several calls at once itself."""
MAX_NAMES = 3
OPEN_ALREADY = "ResourceAlreadyExistsException"


def build_demand(given: Wishes) -> Demand:
    market = SPOT if given.spot else ON_DEMAND
    return Demand(given.nodes, given.gpus, given.gpu_type, given.gpu_mem, market, given.profile, given.types)


def build_report(account: Account, request: Request) -> QuotaReport:
    """The quotas of each region, and what follows from them. Raises ProviderError, UsageError."""
    checked = wishes(request)
    regions = _select_regions(account, request)
    names_machines = bool(checked.gpus or checked.gpu_type or checked.gpu_mem or checked.types or checked.nodes > 1)
    demand = build_demand(checked)
    answers = ask_all(
        {region: partial(_survey_for_demand, account, region, demand, names_machines) for region in regions},
        MAX_REGIONS_AT_ONCE,
    )
    surveys: list[RegionSurvey] = []
    left_out: list[tuple[str, str]] = []
    errors: list[ProviderError | UsageError] = []
    for region, answer in answers.items():
        if isinstance(answer, RegionSurvey):
            surveys.append(answer)
        else:
            errors.append(account.explain(region, answer))
            left_out.append((region, errors[-1].message))
    if not surveys:
        raise errors[0]
    gaps = [(survey.region, why) for survey in surveys for why in survey.standing.why.values()]
    notes = [*_group_by_reason(left_out, "left out"), *_group_by_reason(gaps, "known in part")]
    if account.plan(regions[0]) is Plan.FREE:
        notes.insert(0, "; ".join(FREE_PLAN))
    rows = [row for survey in surveys for row in build_rows(survey, demand, names_machines=names_machines)]
    now = account.clock.now()
    if names_machines:
        advice = quota_advice.advise_on_request(demand, surveys, now)
    else:
        one_gpu = dataclasses.replace(demand, gpus=1)
        chosen = [_with_choice_if_any(survey, one_gpu) for survey in surveys]
        advice = quota_advice.advise_for_one_gpu(one_gpu, chosen, now)
    return QuotaReport(quotas=rows, advice=list(map(str, advice)), notes=notes)


def _select_regions(account: Account, request: Request) -> list[str]:
    if (request.region or "").partition("@")[0].strip().lower() != ALL_REGIONS:
        return account.regions(request)
    usual = account.regions(dataclasses.replace(request, region=None))[0]
    regions = account.opted_in(split_region(usual)[1] or (request.region or "").partition("@")[2])
    # The usual region comes first: of equals it is the one that is advised.
    return sorted(regions, key=lambda region: split_region(region)[0] != split_region(usual)[0])


def build_rows(place: RegionSurvey, asked: Demand, *, names_machines: bool) -> list[Quota]:
    """A region's quotas, those of the market asked for first; with a request those that it could be counted against."""
    markets = sorted(MARKETS, key=lambda market: market != asked.market) if names_machines else list(MARKETS)
    rows = []
    for market in markets:
        for counted in _select_classes(place, market, names_machines=names_machines):
            kinds = place.chosen.get(market, ()) if names_machines else ()
            rows.append(
                build_quota(
                    place.region,
                    counted,
                    place.standing,
                    kinds,
                    asked.nodes,
                    asked=names_machines and market == asked.market and bool(kinds or not place.kinds),
                    usual=not names_machines and market == asked.market and counted in (G_SPOT, G_ON_DEMAND),
                )
            )
    return rows


def _select_classes(place: RegionSurvey, market: str, *, names_machines: bool) -> list[QuotaClass]:
    """Without a request every quota; with one those of the kinds that it means."""
    if not names_machines or not place.kinds:
        return [quota_class for quota_class in GPU_CLASSES if quota_class.market == market]
    meant = {quota_class_of(kind.type, market) for kind in place.chosen.get(market, ())}
    known = [quota_class for quota_class in ALL_CLASSES if quota_class in meant]
    return [*known, *sorted(meant.difference(known), key=lambda quota_class: quota_class.name)]


def _group_by_reason(whys: Sequence[tuple[str, str]], what: str) -> list[str]:
    """Each reason once, with the regions that gave it. `what`: what these regions are, such as `left out`."""
    notes = []
    for reason in dict.fromkeys(why for _, why in whys):
        names = list(dict.fromkeys(split_region(region)[0] for region, why in whys if why == reason))
        verb = "is" if len(names) == 1 else "are"
        notes.append(f"{first_few(names, MAX_NAMES)} {verb} {what}: {reason}")
    return notes


def _survey_for_demand(account: Account, region: str, asked: Demand, names_machines: bool) -> RegionSurvey:
    place = survey_region(account, region, types=asked.types)
    if not names_machines or not place.kinds:
        return place
    return dataclasses.replace(place, chosen=select_by_market(place.kinds, asked, region))


def _with_choice_if_any(place: RegionSurvey, asked: Demand) -> RegionSurvey:
    """A place with the kinds that are meant, or without any where it has none."""
    try:
        return dataclasses.replace(place, chosen=select_by_market(place.kinds, asked, place.region))
    except UsageError:
        return place


def select_by_market(kinds: Sequence[InstanceType], asked: Demand, region: str = "") -> dict[str, list[InstanceType]]:
    """The kinds that a request means, by market. Raises UsageError where the market asked for has none."""
    found = {}
    where = f"in {split_region(region)[0]}" if region else "there"
    for market in MARKETS:
        try:
            found[market] = catalog.select_instance_types(
                kinds,
                gpus=asked.gpus,
                gpu_type=asked.gpu_type,
                gpu_mem=asked.gpu_mem,
                market=market,
                types=asked.types,
                where=where,
            )
        except UsageError:
            if market == asked.market:
                raise
    return found


def survey_region(account: Account, region: str, *, types: Sequence[str]) -> RegionSurvey:
    """A region's types and quotas, asked for at once. `types`: names of further ones."""
    classes = ALL_CLASSES if types else GPU_CLASSES
    with ThreadPoolExecutor(1, thread_name_prefix="aws") as pool:
        found: Future[dict[str, InstanceType]] = pool.submit(catalog.list_instance_types, account, region, types)

        def vcpus() -> dict[str, int]:
            return {name: kind.vcpus for name, kind in found.result().items()}

        standing = read_account_quotas(account, region, classes, vcpus, history=True)
        try:
            kinds = found.result()
        except ProviderError as error:
            if not is_unreadable(error):
                raise
            return RegionSurvey(
                region, (), {}, dataclasses.replace(standing, why={**standing.why, "types": error.message})
            )
    return RegionSurvey(region, tuple(kinds.values()), {}, standing)


def request_quota(account: Account, quota: Quota, wanted: float) -> QuotaIncrease:
    """File a request for a new total; where one is open already, that one. Raises ProviderError."""
    client = account.client("service-quotas", quota.region)
    try:
        answer = ask(
            f"ask for more of the quota {quota.code}",
            client.request_service_quota_increase,
            ServiceCode=SERVICE,
            QuotaCode=quota.code,
            DesiredValue=float(wanted),
        )
    except ProviderError as error:
        if code(error) != OPEN_ALREADY:
            raise
        open_requests = select_increases(read_increases(account, quota.region), open=True).get(quota.code)
        if not open_requests:
            raise
        return open_requests[0]
    return parse_increase(answer["RequestedQuota"])


def requested_quota(account: Account, quota: Quota, id: str) -> QuotaIncrease:
    """Read a request for an increase. Where its status does not say whether it was granted, the quota does. Raises
    ProviderError."""
    client = account.client("service-quotas", quota.region)
    answer = ask("look at the request", client.get_requested_service_quota_change, RequestId=id)
    increase = parse_increase(answer["RequestedQuota"])
    if increase.open or increase.granted:
        return increase
    if increase.granted is None:
        if read_limit(account, quota.region, quota.code) >= increase.wanted:
            return dataclasses.replace(increase, granted=True)
        if quota_advice.may_still_be_granted(increase, account.clock.now()):
            return dataclasses.replace(increase, open=True, advice=(quota_advice.GRANT_DELAY_NOTE,))
    return dataclasses.replace(increase, granted=False, advice=quota_advice.advise_on_refusal(quota, increase))
