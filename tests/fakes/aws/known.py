"""What AWS says of its instance types, and an account's standing made up for a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from moto.ec2.models.instance_types import INSTANCE_TYPES

from gpuops.core.quota import QuotaIncrease
from provisioners.aws import quota_report
from provisioners.aws.catalog import InstanceType, parse_instance_type
from provisioners.aws.instance_alternatives import Demand, RegionSurvey
from provisioners.aws.quotas import GPU_CLASSES, SPOT, AccountQuotas

G_SPOT, P4_SPOT, P5_SPOT, G, P = (one.code for one in GPU_CLASSES)


@cache
def kinds() -> tuple[InstanceType, ...]:
    """Every type of the families that gpuops asks for, as the real service tells of them."""
    families = ("g", "p", "vt")
    return tuple(parse_instance_type(one) for name, one in INSTANCE_TYPES.items() if name.startswith(families))


def asked(nodes: int = 1, gpus: int | None = 4, market: str = SPOT, **more: str | int | None) -> Demand:
    kind, memory = more.get("gpu_type"), more.get("gpu_mem")
    return Demand(nodes, gpus, None if kind is None else str(kind), None if memory is None else int(memory), market)


def place(
    wish: Demand,
    limits: Mapping[str, float],
    used: Mapping[str, float | None] | None = None,
    increases: Mapping[str, Sequence[QuotaIncrease]] | None = None,
    region: str = "us-east-1",
) -> RegionSurvey:
    """A region with every type, where the account may have so much: 0 where nothing is said."""
    whole = {one.code: limits.get(one.code, 0.0) for one in GPU_CLASSES}
    busy = {one.code: (used or {}).get(one.code, 0.0) for one in GPU_CLASSES}
    standing = AccountQuotas(whole, busy, {}, increases or {})
    return RegionSurvey(region, kinds(), quota_report.select_by_market(kinds(), wish), standing)
