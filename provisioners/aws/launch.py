"""The one request that starts machines: what it says, and how often it is said. All nodes or none, in one zone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpuops.core.errors import ProviderError, QuotaExceeded, RateLimited, Unknown
from gpuops.core.models import Intent, Offer
from provisioners.aws import errors, machines, quota_advice
from provisioners.aws.alternatives import Demand
from provisioners.aws.api import ask, split_region
from provisioners.aws.network import backoff_s, is_not_propagated
from provisioners.aws.options import Wishes
from provisioners.aws.quotas import format_calculation

MAX_ATTEMPTS = 6
QUOTA_LIMIT = re.compile(r"limit of (\d+)")
"""In AWS's words: what the quota is now."""
LAST_ATTEMPT_S = 100.0
"""No attempt begins later than this after `create` began; its answer may take 40 s more."""


def run_parameters(offer: Offer, intent: Intent, group: str, user_data: str, told: Mapping[str, str]) -> dict[str, Any]:
    """RunInstances' parameters. `group`: the security group's id; `told`: the tags of everything."""
    data, spot = offer.data, offer.data["market"] == "spot"
    ebs = {"DeleteOnTermination": True, "Encrypted": True}  # some organizations insist; the account's own key is free
    disk = {"VolumeSize": int(data["disk"]), "VolumeType": "gp3", **ebs}
    further = [{"DeviceName": one, "Ebs": ebs} for one in data.get("devices") or ()]
    found: dict[str, Any] = {
        "ImageId": data["ami"],
        "InstanceType": data["type"],
        "MinCount": offer.nodes,
        "MaxCount": offer.nodes,
        "ClientToken": intent.token,
        "UserData": user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        "BlockDeviceMappings": [{"DeviceName": data["root_device"], "Ebs": disk}, *further],
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "SubnetId": data["subnet"],
                "Groups": [group],
                "AssociatePublicIpAddress": bool(data.get("public", True)),
                "DeleteOnTermination": True,
            }
        ],
        "TagSpecifications": machines.tag_specifications(
            told, "instance", "volume", "network-interface", *(["spot-instances-request"] if spot else [])
        ),
    }
    if spot:
        found["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        }
    return {**found, **(data.get("launch") or {})}


def optional_parameters(given: Wishes) -> dict[str, Any]:
    """What a request adds to RunInstances' parameters."""
    found: dict[str, Any] = {}
    if profile := given.instance_profile:
        found["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
    if given.placement_group:
        found["Placement"] = {"GroupName": given.placement_group}
    return found | (given.reserved.parameters() if given.reserved else {})


def run_instances(
    client: Any,
    wanted: Mapping[str, Any],
    doing: str,
    *,
    ours: bool,
    since: float | None = None,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """RunInstances' answer. `client`: one that asks once; `ours`: whether the security group was just made; `since`:
    when, by the clock, `create` has begun.

    What may have gone wrong on the way is asked again with the same client token, which makes nothing twice. Raises
    ProviderError: Unknown as soon as one of the requests was not answered, with what another said as `instead`.
    """
    began, unanswered = clock() if since is None else since, False
    for attempt in range(MAX_ATTEMPTS):
        try:
            return dict(ask(doing, client.run_instances, creating=True, **wanted))
        except ProviderError as error:
            unanswered = unanswered or isinstance(error, Unknown)
            again = isinstance(error, Unknown | RateLimited) or (ours and is_not_propagated(error))
            wait = max(backoff_s(attempt), getattr(error, "retry_after", None) or 0.0)
            late = attempt == MAX_ATTEMPTS - 1 or clock() - began + wait >= LAST_ATTEMPT_S
            if not again or late or errors.code(error) == "IdempotentParameterMismatch":
                if unanswered and not isinstance(error, Unknown):
                    say = f"{error.say}; and a request before was not answered"
                    raise Unknown(say, error.hint, instead=error) from error
                raise
            pause(wait)
    raise AssertionError("every attempt returns or raises")


def explain_quota_error(error: QuotaExceeded, offer: Offer) -> QuotaExceeded:
    """The same refusal with the numbers and the command of this offer, where it is a quota of vCPUs that it exceeds."""
    data, named = offer.data, errors.code(error)
    if named not in ("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"):
        return error
    told = QUOTA_LIMIT.search(error.say)
    limit = f" ({told[1]} vCPU)" if told else ""
    where, market = split_region(offer.region)[0], str(data["market"])
    kind = str(data["type"])
    wished = (
        Demand(offer.nodes, offer.gpus, kind, None, market)
        if offer.gpus
        else Demand(offer.nodes, None, None, None, market, types=kind)
    )
    return QuotaExceeded(
        f"the account's quota of {market} vCPUs in {where}{limit} is too small for "
        f"{format_calculation(offer.nodes, float(data['vcpus']))}, or used up",
        f"see what is missing, and request more: {quota_advice.build_command(wished, 'quota', offer.region)}",
    )


def describe_launch(offer: Offer) -> str:
    """What it is, for people: `start 2 x g5.12xlarge in us-east-1b`."""
    data = offer.data
    where = data.get("zone") or split_region(offer.region)[0]
    return f"start {offer.nodes} x {data['type']} in {where}"
