"""AWS's quotas: how many vCPUs of a class of instances an account may run at once in a region.

Which class a type belongs to is told by the letters of its family (`g`, `gr`, `vt`; `p`; `c`), never by a list.
What counts against a quota: running and pending instances, and for spot the requests that are not closed as well. All
but the questions at the end are pure. Source: AWS, "Amazon EC2 instance type quotas", with the codes and defaults (0;
Standard: 5).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from gpuops.core.errors import AuthFailed, ProviderError, UsageError
from gpuops.core.quota import Quota, QuotaIncrease
from provisioners.aws import ec2
from provisioners.aws.account import Account
from provisioners.aws.api import Document, ask, pages
from provisioners.aws.catalog import InstanceType
from provisioners.aws.ec2 import COUNTED_REQUESTS, COUNTED_STATES, Instance, SpotRequest, SpotRequestState
from provisioners.aws.errors import code, lacks_permission
from provisioners.kit.calls import ask_all, require

SERVICE = "ec2"
SPOT, ON_DEMAND = "spot", "on-demand"
MARKETS = (SPOT, ON_DEMAND)
UNIT = "vCPU"
OPEN_STATUSES = ("PENDING", "CASE_OPENED")
GRANTED_BY_STATUS = {"APPROVED": True, "DENIED": False, "NOT_APPROVED": False, "INVALID_REQUEST": False}
"""Any other status, CASE_CLOSED for one, does not say whether the increase was granted."""
CASE_URL = "https://support.console.aws.amazon.com/support/home#/case/?displayId={}"
CASE_LIST_URL = "https://support.console.aws.amazon.com/support/home#/case/history"
NO_SUCH_RESOURCE = "NoSuchResourceException"
READ_QUOTAS = "read the quotas"
FAMILY = re.compile(r"([a-z]+)(\d*)")


@dataclass(frozen=True)
class QuotaClass:
    """One quota of AWS's."""

    code: str
    """Empty where AWS documents none."""
    name: str
    market: str


G_SPOT = QuotaClass("L-3819A6DF", "All G and VT Spot Instance Requests", SPOT)
P4_SPOT = QuotaClass("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", SPOT)
P5_SPOT = QuotaClass("L-C4BD4855", "All P5 Spot Instance Requests", SPOT)
G_ON_DEMAND = QuotaClass("L-DB2E81BA", "Running On-Demand G and VT instances", ON_DEMAND)
P_ON_DEMAND = QuotaClass("L-417A185B", "Running On-Demand P instances", ON_DEMAND)
NEWER_P_SPOT = QuotaClass("", "newer P Spot Instance Requests", SPOT)
"""P6 and what comes after it: AWS's page has no row for them, and its quotas of the same letter are not theirs."""
STANDARD_SPOT = QuotaClass("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", SPOT)
STANDARD_ON_DEMAND = QuotaClass(
    "L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", ON_DEMAND
)
GPU_CLASSES = (G_SPOT, P4_SPOT, P5_SPOT, G_ON_DEMAND, P_ON_DEMAND)
"""Those of GPUs."""
ALL_CLASSES = (*GPU_CLASSES, STANDARD_SPOT, STANDARD_ON_DEMAND)
STANDARD_FAMILIES = frozenset(["a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"])
"""Of the families that Standard counts."""


def quota_class_of(type: str, market: str) -> QuotaClass:
    """The quota that a type's vCPUs are counted against."""
    match = FAMILY.match(type.partition(".")[0])
    letters, number = (match[1], int(match[2] or 0)) if match else ("", 0)
    if letters.startswith("g") or letters == "vt":
        return G_SPOT if market == SPOT else G_ON_DEMAND
    if letters in STANDARD_FAMILIES:
        return STANDARD_SPOT if market == SPOT else STANDARD_ON_DEMAND
    if letters != "p":
        return QuotaClass("", f"{letters.upper()} instances", market)
    if market != SPOT:
        return P_ON_DEMAND
    return P4_SPOT if number <= 4 else P5_SPOT if number == 5 else NEWER_P_SPOT


def count_usage(
    instances: Iterable[Instance], requests: Iterable[SpotRequest], vcpus: Mapping[str, int]
) -> dict[str, float | None]:
    """vCPUs in use by code. None where a type's vCPUs are not known. `vcpus`: by type."""
    counted: set[str] = set()
    used: dict[str, float | None] = {quota_class.code: 0.0 for quota_class in ALL_CLASSES}

    def count(type: str, market: str, number: int | None) -> None:
        against = quota_class_of(type, market)
        if against.code:
            so_far = used[against.code]
            used[against.code] = None if number is None or so_far is None else so_far + number

    for instance in instances:
        market = instance.lifecycle or ON_DEMAND
        if instance.state in COUNTED_STATES and market in MARKETS:
            number = vcpus.get(instance.type) if instance.vcpus is None else instance.vcpus
            count(instance.type, market, number)
            counted.add(instance.id)
    for request in requests:
        ended = request.state is SpotRequestState.ACTIVE and request.instance and request.instance not in counted
        if request.state is SpotRequestState.OPEN or ended:  # AWS counts an ended machine's request until it is closed
            count(request.type, SPOT, vcpus.get(request.type))
    return used


@dataclass(frozen=True)
class AccountQuotas:
    """The quotas of an account in one region, what is in use of them, and the requests for increases."""

    limits: Mapping[str, float] = field(default_factory=dict)
    """By code. Quotas that could not be read are left out."""
    used: Mapping[str, float | None] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    """Why a limit (by its code) or what is in use (`used`) is not known."""
    increases: Mapping[str, Sequence[QuotaIncrease]] | None = field(default_factory=dict)
    """Open requests by code; None: not known."""
    closed: Mapping[str, QuotaIncrease] = field(default_factory=dict)
    """The last request by code, where it is closed and AWS does not report it as granted."""

    def free(self, counted: QuotaClass) -> float | None:
        limit, used = self.limits.get(counted.code), self.used.get(counted.code)
        return None if limit is None or used is None else max(limit - used, 0.0)


def build_quota(
    region: str,
    counted: QuotaClass,
    standing: AccountQuotas,
    kinds: Iterable[InstanceType],
    nodes: int,
    *,
    asked: bool,
    usual: bool = False,
) -> Quota:
    """One quota, and what a request takes of it that any of these kinds would serve."""
    ours = [kind for kind in kinds if quota_class_of(kind.type, counted.market) == counted]
    smallest = min(ours, key=lambda kind: (kind.vcpus, kind.type), default=None)
    least = None if smallest is None else smallest.vcpus
    limit, used = standing.limits.get(counted.code), standing.used.get(counted.code)
    why = standing.why.get(counted.code) or (standing.why.get("used", "") if used is None else "")
    if not counted.code:
        why = "AWS documents no quota for it"
    return Quota(
        region=region,
        code=counted.code,
        name=counted.name,
        unit=UNIT,
        limit=limit,
        used=used,
        need=None if least is None else float(nodes * least),
        sum="" if least is None else format_calculation(nodes, least),
        machines="" if smallest is None else f"{nodes} x {smallest.type}",
        asked=asked,
        usual=usual,
        increases=None if standing.increases is None else tuple(standing.increases.get(counted.code, ())),
        why=why,
    )


def format_calculation(nodes: int, vcpus: float) -> str:
    return f"{nodes} x {vcpus:g} {UNIT}"


def case_link(one: QuotaIncrease) -> str:
    """Where a request's support case is read and replied to; without its number the list of all cases."""
    return CASE_URL.format(one.case) if one.case else CASE_LIST_URL


def parse_increase(document: Document) -> QuotaIncrease:
    """An increase from a document of Service Quotas."""
    status = str(document.get("Status") or "")
    found = QuotaIncrease(
        id=str(document.get("Id") or ""),
        status=status,
        wanted=float(document.get("DesiredValue") or 0.0),
        created=_timestamp(document.get("Created")),
        open=status in OPEN_STATUSES,
        granted=GRANTED_BY_STATUS.get(status),
        case=str(document.get("CaseId") or ""),
        decided=_timestamp(document.get("LastUpdated")),
    )
    advice = (f"people at AWS decide, and may ask what it is for: {case_link(found)}",)
    return dataclasses.replace(found, advice=advice if found.open and found.case else ())


def _timestamp(moment: object) -> float | None:
    return moment.timestamp() if isinstance(moment, datetime) else None


# Questions. Where something may not be read, or does not answer, it is unknown; only wrong credentials are an error.


def read_account_quotas(
    account: Account,
    region: str,
    classes: Sequence[QuotaClass],
    vcpus: Callable[[], Mapping[str, int]],
    *,
    history: bool,
) -> AccountQuotas:
    """The account's quotas in a region. `history`: whether requests for increases are read as well."""
    codes = [quota_class.code for quota_class in classes if quota_class.code]
    calls: dict[str, Callable[[], Any]] = {code: partial(read_limit, account, region, code) for code in codes}
    spot = any(quota_class.market == SPOT for quota_class in classes)
    calls["used"] = partial(_read_usage, account, region, vcpus, spot=spot)
    if history:
        calls["history"] = partial(read_increases, account, region)
    answers = ask_all(calls)
    known: dict[str, Any] = {name: answer for name, answer in answers.items() if not is_unreadable(answer)}
    return AccountQuotas(
        limits={code: float(known[code]) for code in codes if code in known},
        used=known.get("used", {}),
        why={name: answer.message for name, answer in answers.items() if isinstance(answer, ProviderError)},
        increases=select_increases(known["history"], open=True) if "history" in known else None if history else {},
        closed={code: last[0] for code, last in select_increases(known.get("history", {}), open=False).items()},
    )


def is_unreadable(answer: Any) -> bool:
    """Whether an answer is an error that leaves a value unknown. Raises errors of credentials, and UsageError."""
    if isinstance(answer, UsageError) or (isinstance(answer, AuthFailed) and not lacks_permission(answer)):
        raise answer
    return isinstance(answer, ProviderError)


def read_limit(account: Account, region: str, quota_code: str) -> float:
    """The quota as it is now: the one applied, else the default. Raises ProviderError."""
    client = account.client("service-quotas", region)
    try:
        answer = ask(READ_QUOTAS, client.get_service_quota, ServiceCode=SERVICE, QuotaCode=quota_code)
    except ProviderError as error:
        if code(error) != NO_SUCH_RESOURCE:  # which means: never changed, so that the default holds
            raise
        answer = ask(READ_QUOTAS, client.get_aws_default_service_quota, ServiceCode=SERVICE, QuotaCode=quota_code)
    return float(answer["Quota"]["Value"])


def _read_usage(
    account: Account, region: str, vcpus: Callable[[], Mapping[str, int]], *, spot: bool
) -> dict[str, float | None]:
    client, doing = account.client("ec2", region), "see what is in use"
    running: Document = {"Name": "instance-state-name", "Values": [state.value for state in COUNTED_STATES]}
    calls: dict[str, Callable[[], Any]] = {"machines": partial(ec2.list_instances, client, doing, [running])}
    if spot:
        calls["requests"] = partial(ec2.list_spot_requests, client, doing, [COUNTED_REQUESTS])
    answers = {name: require(answer) for name, answer in ask_all(calls).items()}
    return count_usage(answers["machines"], answers.get("requests", ()), vcpus())


def select_increases(history: Mapping[str, Sequence[QuotaIncrease]], *, open: bool) -> dict[str, list[QuotaIncrease]]:
    """By code the open requests, of which AWS takes one at a time; or the last one, if it is closed and not granted."""
    selected = {
        code: [increase for increase in (listed if open else listed[:1]) if increase.open == open]
        for code, listed in history.items()
    }
    return {code: listed for code, listed in selected.items() if listed and listed[0].granted is not True}


def read_increases(account: Account, region: str) -> dict[str, list[QuotaIncrease]]:
    """The requests for more of the last 90 days, by code, the last one first. Raises ProviderError."""
    client = account.client("service-quotas", region)
    documents = pages(
        "list requests for more quota",
        client,
        "list_requested_service_quota_change_history",
        "RequestedQuotas",
        ServiceCode=SERVICE,
    )
    found: dict[str, list[QuotaIncrease]] = {}
    for document in documents:
        found.setdefault(str(document.get("QuotaCode")), []).append(parse_increase(document))
    return {code: sorted(listed, key=lambda increase: -(increase.created or 0.0)) for code, listed in found.items()}
