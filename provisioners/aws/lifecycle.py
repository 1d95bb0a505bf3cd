"""Finding what is ours: by tag, in every region that is named, all pages; and one look at one thing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from gpuops.core.errors import Partial, ProviderError, UsageError
from gpuops.core.format import first_few
from gpuops.core.models import Resource
from provisioners.aws import machines
from provisioners.aws.account import Account
from provisioners.aws.api import ask, pages, split, together
from provisioners.aws.errors import barred, code

AT_A_TIME = 16
"""So many regions."""


def owned(account: Account, home: Path, owner: str, regions: Sequence[str]) -> list[Resource]:
    """What carries an owner's mark, in these regions or in all. Raises Partial where not all of them answer, and what
    the only one says where there is one.

    Of all regions those are left out that the account's organization closes to it: nothing can be rented there.
    """
    silent: list[str] = []
    errors: list[ProviderError | UsageError] = []
    wanted = list(dict.fromkeys(regions))
    if not wanted:
        wanted, silent, errors = _everywhere(account)
    calls = {region: partial(_in_region, account, home, owner, region) for region in wanted}
    found: dict[tuple[str, str], Resource] = {}
    answers = together(calls, AT_A_TIME)
    answered = sum(not isinstance(answer, ProviderError | UsageError) for answer in answers.values())
    for region, answer in answers.items():
        if isinstance(answer, ProviderError | UsageError):
            if regions or not answered or not barred(answer):
                silent.append(split(region)[0])
                errors.append(answer)
        else:
            for one in answer:  # two profiles may be of one account
                found.setdefault((one.kind, one.id), one)
    if not errors:
        return list(found.values())
    if len(wanted) == 1 or (answered == 0 and len({type(error) for error in errors}) == 1):
        raise errors[0]
    raise Partial(
        f"AWS does not tell what there is in {first_few(silent, 4)}: {errors[0].say}",
        errors[0].hint,
        list(found.values()),
    ) from errors[0]


def _everywhere(account: Account) -> tuple[list[str], list[str], list[ProviderError | UsageError]]:
    """All regions of all profiles; which profiles do not tell theirs, and why."""
    profiles = account.profiles()
    told = together({profile: partial(account.opted_in, profile) for profile in profiles})
    regions: list[str] = []
    silent: list[str] = []
    errors: list[ProviderError | UsageError] = []
    for profile, answer in told.items():
        if isinstance(answer, ProviderError | UsageError):
            if len(told) == 1:
                raise answer
            silent.append(f"the account of profile {profile}" if profile else "the account of these credentials")
            errors.append(answer)
        else:
            regions += answer
    return regions, silent, errors


def _in_region(account: Account, home: Path, owner: str, region: str) -> list[Resource]:
    client, name = account.client("ec2", region), split(region)[0]
    mine = machines.account(account.recognised(region), region)
    living = {"Name": "instance-state-name", "Values": list(machines.ALIVE)}
    reservations = pages(
        f"list machines in {name}",
        client,
        "describe_instances",
        "Reservations",
        Filters=machines.filters(owner, living),
    )
    there = machines.all_of(reservations)
    alive = {str(one["InstanceId"]) for one in there}
    requests = pages(
        f"list spot requests in {name}",
        client,
        "describe_spot_instance_requests",
        "SpotInstanceRequests",
        Filters=machines.filters(owner, {"Name": "state", "Values": list(machines.OPEN)}),
    )
    free = machines.filters(owner, machines.FREE)
    volumes = pages(f"list volumes in {name}", client, "describe_volumes", "Volumes", Filters=free)
    doing = f"list network interfaces in {name}"
    cards = pages(doing, client, "describe_network_interfaces", "NetworkInterfaces", Filters=free)
    found = [
        *(machines.resource(one, region, home, mine) for one in there),
        *(machines.group(one, region, mine) for one in groups(client, name, owner)),
        *(machines.request(one, region, mine) for one in requests if str(one.get("InstanceId") or "") not in alive),
        *(machines.volume(one, region, mine) for one in volumes),
        *(machines.card(one, region, mine) for one in cards),
    ]
    return [one for one in found if one.name]


def groups(client: Any, name: str, owner: str, cluster: str = "") -> list[Mapping[str, Any]]:
    """The security groups of an owner, or of one cluster, as AWS tells of them."""
    further = [{"Name": f"tag:{machines.CLUSTER}", "Values": [cluster]}] if cluster else []
    return pages(
        f"list security groups in {name}",
        client,
        "describe_security_groups",
        "SecurityGroups",
        Filters=machines.filters(owner, *further),
    )


def look(account: Account, home: Path, resource: Resource) -> Resource | None:
    """A thing as it is now; None where AWS knows nothing of it. Raises ProviderError."""
    client = account.client("ec2", resource.region)
    mine = machines.account(account.recognised(resource.region), resource.region, resource.data.get("account"))
    looks: Mapping[str, Callable[[], Resource | None]] = {
        "machine": lambda: _machine(client, home, resource, mine),
        machines.GROUP: lambda: _group(client, resource, mine),
        machines.REQUEST: lambda: _request(client, resource),
        machines.VOLUME: lambda: _volume(client, resource),
        machines.CARD: lambda: _card(client, resource),
    }
    return looks.get(resource.kind, lambda: None)()


def _machine(client: Any, home: Path, resource: Resource, mine: Mapping[str, str]) -> Resource | None:
    told = machine(client, resource.id)
    if told is None:
        return None
    return machines.resource(told, resource.region, home, mine, known=resource.data, name=resource.name)


def machine(client: Any, id_: str) -> Mapping[str, Any] | None:
    """An instance as AWS tells of it; None where it knows none."""
    answer = _found(f"look at the machine {id_}", client.describe_instances, InstanceIds=[id_])
    there = machines.all_of(answer.get("Reservations") or [])
    return there[0] if there else None


def _group(client: Any, resource: Resource, mine: Mapping[str, str]) -> Resource | None:
    doing = f"look at the security group {resource.id}"
    there = _found(doing, client.describe_security_groups, GroupIds=[resource.id]).get("SecurityGroups")
    return machines.group(there[0], resource.region, mine, resource.name) if there else None


def _request(client: Any, resource: Resource) -> Resource | None:
    told = request(client, resource.id)
    return resource if told and told.get("State") in machines.OPEN else None


def _volume(client: Any, resource: Resource) -> Resource | None:
    doing = f"look at the volume {resource.id}"
    there = _found(doing, client.describe_volumes, VolumeIds=[resource.id]).get("Volumes")
    return resource if there and there[0].get("State") != "deleting" else None


def _card(client: Any, resource: Resource) -> Resource | None:
    doing = f"look at the network interface {resource.id}"
    told = _found(doing, client.describe_network_interfaces, NetworkInterfaceIds=[resource.id])
    return resource if told.get("NetworkInterfaces") else None


def request(client: Any, id_: str) -> Mapping[str, Any] | None:
    """A spot request as AWS tells of it; None where it knows none."""
    answer = _found(
        f"look at the spot request {id_}", client.describe_spot_instance_requests, SpotInstanceRequestIds=[id_]
    )
    there = answer.get("SpotInstanceRequests") or []
    return there[0] if there else None


def _found(doing: str, call: Callable[..., Any], **parameters: Any) -> dict[str, Any]:
    """The answer to a question for one thing; {} where it is not there."""
    try:
        return dict(ask(doing, call, **parameters))
    except ProviderError as error:
        if is_absent(error):
            return {}
        raise


def is_absent(error: ProviderError) -> bool:
    """Whether AWS says that there is no such thing."""
    return code(error).endswith(".NotFound")


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
            busy = {machines.cluster_of(one.name) for one in here if one.kind == "machine"}
            for one in here:
                if one.kind == machines.GROUP and machines.cluster_of(one.name) not in busy:
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
        told = request(client, resource.id)
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
        told = machine(client, id_)
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
        if not is_absent(error):
            raise error


def _created(request: Mapping[str, Any]) -> float:
    """When a spot request was made, in UTC seconds; long ago where AWS does not say."""
    at = request.get("CreateTime")
    return at.timestamp() if isinstance(at, datetime) else 0.0
