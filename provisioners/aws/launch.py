"""The one request that starts machines: its parameters, its repetition, and what its refusal means.

All nodes start in one zone, or none does. A request that may have been lost is sent again with the same client token,
which makes nothing twice (AWS, "Ensuring idempotency").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.errors import ProviderError, QuotaExceeded, RateLimited, Unknown
from gpuops.core.models import Intent, Offer
from gpuops.core.polling import Clock
from provisioners.aws import errors, quota_advice
from provisioners.aws.api import Document, ask, split_region
from provisioners.aws.ec2 import Instance, parse_instances
from provisioners.aws.instance_alternatives import Demand
from provisioners.aws.network import backoff_s, is_not_propagated
from provisioners.aws.options import Wishes
from provisioners.aws.quotas import SPOT, format_calculation
from provisioners.aws.tags import tag_specifications

MAX_ATTEMPTS = 6
LAST_ATTEMPT_S = 100.0
"""No attempt begins later than this after `create` began; its answer may take 40 s more."""
QUOTA_LIMIT = re.compile(r"limit of (\d+)")
"""In AWS's words: what the quota is now."""
VCPU_QUOTA_CODES = ("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded")


@dataclass(frozen=True)
class LaunchSpec:
    """The machines that an offer stands for; `Offer.data` holds its document, and the offer itself the rest."""

    region: str
    zone: str
    nodes: int
    gpus: int
    """Per node."""
    type: str
    vcpus: float
    """Per node; 0 where the offer does not say."""
    market: str
    per_hour: float
    """$/h of one machine."""
    spot_most: float | None
    """$/h that a spot machine may come to, without its disk and address; None: what it costs on demand."""
    ami: str
    is_default_image: bool
    """Whether it is AWS's image, and not one that the user has named."""
    user: str
    root_device: str
    other_devices: Sequence[str]
    """Further disks of the image."""
    disk_gb: int
    subnet: str
    vpc: str
    has_public_address: bool
    security_group: str
    """The user's own; empty: one is made for the cluster."""
    ssh_from: str
    """A CIDR; empty: this computer's address."""
    more_parameters: Document
    """`optional_parameters`."""

    @property
    def say(self) -> str:
        """For people: `start 2 x g5.12xlarge in us-east-1b`."""
        return f"start {self.nodes} x {self.type} in {self.zone or split_region(self.region)[0]}"

    def document(self) -> Document:
        """The JSON form, without what the offer itself says."""
        return {
            "zone": self.zone,
            "type": self.type,
            "market": self.market,
            "vcpus": self.vcpus,
            "spot_most": self.spot_most,
            "ami": self.ami,
            "user": self.user,
            "root_device": self.root_device,
            "devices": list(self.other_devices),
            "ami_ours": self.is_default_image,
            "disk": self.disk_gb,
            "subnet": self.subnet,
            "vpc": self.vpc,
            "public": self.has_public_address,
            "security_group": self.security_group,
            "launch": self.more_parameters,
            "ssh_from": self.ssh_from,
        }


def parse_offer(offer: Offer) -> LaunchSpec:
    """The machines of an offer of ours. Raises KeyError, TypeError, ValueError for another."""
    data = offer.data
    return LaunchSpec(
        region=offer.region,
        zone=str(data.get("zone") or ""),
        nodes=offer.nodes,
        gpus=offer.gpus,
        type=str(data["type"]),
        vcpus=float(data.get("vcpus") or 0),
        market=str(data["market"]),
        per_hour=offer.per_hour / offer.nodes,
        spot_most=None if data.get("spot_most") is None else float(data["spot_most"]),
        ami=str(data["ami"]),
        is_default_image=bool(data.get("ami_ours")),
        user=str(data["user"]),
        root_device=str(data["root_device"]),
        other_devices=tuple(data.get("devices") or ()),
        disk_gb=int(data["disk"]),
        subnet=str(data["subnet"]),
        vpc=str(data["vpc"]),
        has_public_address=bool(data.get("public", True)),
        security_group=str(data.get("security_group") or ""),
        ssh_from=str(data.get("ssh_from") or ""),
        more_parameters=data.get("launch") or {},
    )


def run_parameters(
    spec: LaunchSpec, intent: Intent, group: str, user_data: str, tags: Mapping[str, str]
) -> dict[str, Any]:
    """RunInstances' parameters. `group`: the security group's id; `tags`: those of everything that is made."""
    is_spot = spec.market == SPOT
    ebs = {"DeleteOnTermination": True, "Encrypted": True}  # some organizations insist; the account's own key is free
    disk = {"VolumeSize": spec.disk_gb, "VolumeType": "gp3", **ebs}
    spot_type = ["spot-instances-request"] if is_spot else []
    parameters: dict[str, Any] = {
        "ImageId": spec.ami,
        "InstanceType": spec.type,
        "MinCount": spec.nodes,
        "MaxCount": spec.nodes,
        "ClientToken": intent.token,
        "UserData": user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        "BlockDeviceMappings": [
            {"DeviceName": spec.root_device, "Ebs": disk},
            *({"DeviceName": device, "Ebs": ebs} for device in spec.other_devices),
        ],
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "SubnetId": spec.subnet,
                "Groups": [group],
                "AssociatePublicIpAddress": spec.has_public_address,
                "DeleteOnTermination": True,
            }
        ],
        "TagSpecifications": tag_specifications(tags, "instance", "volume", "network-interface", *spot_type),
    }
    if is_spot:
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        most = {} if spec.spot_most is None else {"MaxPrice": f"{spec.spot_most:.4f}"}
        parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": {**options, **most}}
    return {**parameters, **spec.more_parameters}


def optional_parameters(wishes: Wishes) -> Document:
    """What a request adds to RunInstances' parameters."""
    parameters: dict[str, Any] = {}
    if profile := wishes.instance_profile:
        parameters["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
    if wishes.placement_group:
        parameters["Placement"] = {"GroupName": wishes.placement_group}
    return {**parameters, **(wishes.reserved.parameters() if wishes.reserved else {})}


def run_instances(
    client: Any,
    parameters: Mapping[str, Any],
    doing: str,
    *,
    group_is_new: bool,
    clock: Clock,
    began: float,
) -> list[Instance]:
    """Start machines, and return them as AWS lists them. `client`: one that sends each request once; `group_is_new`:
    whether the security group was just made; `began`: when `create` began, by the monotonic clock.

    What may have gone wrong on the way is sent again with the same client token. Raises ProviderError: Unknown as soon
    as one of the requests was not answered, with what another said as `instead`.
    """
    unanswered = False
    for attempt in range(MAX_ATTEMPTS):
        try:
            return parse_instances(ask(doing, client.run_instances, creating=True, **parameters))
        except ProviderError as error:
            unanswered = unanswered or isinstance(error, Unknown)
            wait_s = backoff_s(attempt)
            is_late = attempt == MAX_ATTEMPTS - 1 or clock.monotonic() - began + wait_s >= LAST_ATTEMPT_S
            if not _may_be_retried(error, group_is_new) or is_late:
                if unanswered and not isinstance(error, Unknown):
                    say = f"{error.message}; and a request before was not answered"
                    raise Unknown(say, error.hint, instead=error) from error
                raise
            clock.sleep(wait_s)
    raise AssertionError("every attempt returns or raises")


def _may_be_retried(error: ProviderError, group_is_new: bool) -> bool:
    may_pass = isinstance(error, Unknown | RateLimited) or (group_is_new and is_not_propagated(error))
    return may_pass and errors.code(error) != "IdempotentParameterMismatch"


def explain_quota_error(error: QuotaExceeded, spec: LaunchSpec) -> QuotaExceeded:
    """The same refusal with the numbers and the command of these machines, where it is a quota of vCPUs that they
    exceed."""
    if errors.code(error) not in VCPU_QUOTA_CODES:
        return error
    match = QUOTA_LIMIT.search(error.message)
    limit = f" ({match[1]} vCPU)" if match else ""
    demand = (
        Demand(spec.nodes, spec.gpus, spec.type, None, spec.market)
        if spec.gpus
        else Demand(spec.nodes, None, None, None, spec.market, types=(spec.type,))
    )
    return QuotaExceeded(
        f"the account's quota of {spec.market} vCPUs in {split_region(spec.region)[0]}{limit} is too small for "
        f"{format_calculation(spec.nodes, spec.vcpus)}, or used up",
        f"see what is missing, and request more: {quota_advice.build_command(demand, 'quota', spec.region)}",
    )
