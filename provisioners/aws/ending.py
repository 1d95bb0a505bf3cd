"""Ending what is ours, in the order that works: machines; then the spot requests that they came from, and disks and
network interfaces that they have left behind; then their group.

A spot request is never cancelled while its machine lives: AWS would then stop it where it should end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from gpuops.core.errors import ProviderError
from gpuops.core.models import Resource
from provisioners.aws import listing, machines, tags
from provisioners.aws.access import Account, ask
from provisioners.aws.failures import code

IN_USE = ("DependencyViolation", "InvalidGroup.InUse", "VolumeInUse", "InvalidNetworkInterface.InUse")
"""Codes for what cannot go yet."""
LAG_S = 60.0
"""So long after its creation a spot request's machine may exist and not be known."""


class Ending:
    """One round. Gone already is success; what cannot go yet is left for the next."""

    def __init__(self, account: Account, now: Callable[[], float] = time.time) -> None:
        self._account = account
        self._now = now
        self._errors: list[ProviderError] = []

    def destroy(self, resources: Sequence[Resource]) -> None:
        """Raises what one of them came to, when all were asked for."""
        ends = {machines.REQUEST: self._request, machines.VOLUME: self._volume, machines.CARD: self._card}
        for region in dict.fromkeys(one.region for one in resources):
            here = [one for one in resources if one.region == region]
            self._try(partial(self._machines, region, [one for one in here if one.kind == "machine"]))
            for one in here:
                if end := ends.get(one.kind):
                    self._try(partial(end, one))
            busy = {tags.cluster_of(one.name) for one in here if one.kind == "machine"}
            for one in here:
                if one.kind == tags.GROUP and tags.cluster_of(one.name) not in busy:
                    self._try(partial(self._group, one))
        if self._errors:
            raise self._errors[0]

    def _try(self, end: Callable[[], None]) -> None:
        try:
            end()
        except ProviderError as error:
            self._errors.append(error)

    def _machines(self, region: str, there: Sequence[Resource]) -> None:
        """All in one request; where that fails, which then has ended none, one by one."""
        if not there:
            return
        client = self._account.client("ec2", region)
        try:
            ask("end machines", client.terminate_instances, InstanceIds=[one.id for one in there])
        except ProviderError as error:
            if len(there) == 1:
                self._unless_absent(error)
                return
            for one in there:
                self._try(partial(self._machines, region, [one]))

    def _request(self, resource: Resource) -> None:
        client = self._account.client("ec2", resource.region)
        told = listing.request(client, resource.id)
        if told is None or told.get("State") not in machines.OPEN:
            return
        id_ = str(told.get("InstanceId") or "")
        if id_ and not self._is_over(client, id_, told):
            return
        doing = f"cancel the spot request {resource.id}"
        try:
            ask(doing, client.cancel_spot_instance_requests, SpotInstanceRequestIds=[resource.id])
        except ProviderError as error:
            self._unless_absent(error)

    def _is_over(self, client: Any, id_: str, request: Mapping[str, Any]) -> bool:
        """Whether a spot request's machine is no more. One that lives is ended; one not known may be too young."""
        told = listing.machine(client, id_)
        state = str(((told or {}).get("State") or {}).get("Name") or "")
        if state == "terminated":
            return True
        if state != "shutting-down":
            try:
                ask(f"end the machine {id_}", client.terminate_instances, InstanceIds=[id_])
            except ProviderError as error:
                self._unless_absent(error)
        return told is None and self._now() - _created(request) > LAG_S

    def _volume(self, resource: Resource) -> None:
        client = self._account.client("ec2", resource.region)
        self._remove(f"delete the volume {resource.id}", client.delete_volume, VolumeId=resource.id)

    def _card(self, resource: Resource) -> None:
        client, id_ = self._account.client("ec2", resource.region), resource.id
        self._remove(f"delete the network interface {id_}", client.delete_network_interface, NetworkInterfaceId=id_)

    def _group(self, resource: Resource) -> None:
        client = self._account.client("ec2", resource.region)
        self._remove(f"delete the security group {resource.id}", client.delete_security_group, GroupId=resource.id)

    def _remove(self, doing: str, call: Callable[..., Any], **which: Any) -> None:
        """What is still in use is left for the next round."""
        try:
            ask(doing, call, **which)
        except ProviderError as error:
            if code(error) not in IN_USE:
                self._unless_absent(error)

    def _unless_absent(self, error: ProviderError) -> None:
        if not listing.is_absent(error):
            raise error


def _created(request: Mapping[str, Any]) -> float:
    """When a spot request was made, in UTC seconds; long ago where AWS does not say."""
    at = request.get("CreateTime")
    return at.timestamp() if isinstance(at, datetime) else 0.0
