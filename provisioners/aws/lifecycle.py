"""Listing resources of ours by tag, in every named region and all pages; describing one; ending them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpuops.core.errors import Partial, ProviderError, UsageError
from gpuops.core.format import first_few
from gpuops.core.models import Resource
from provisioners.aws import machines
from provisioners.aws.account import Account
from provisioners.aws.api import ask, ask_all, pages, split_region
from provisioners.aws.errors import barred, code
from provisioners.aws.machines import Instance, RequestState, SpotRequest, State

MAX_REGIONS_AT_ONCE = 16
"""Regions that are listed at the same time; each makes five calls, one after another."""


def list_owned(account: Account, home: Path, owner: str, regions: Sequence[str]) -> list[Resource]:
    """What carries an owner's mark, in these regions or in all. Raises Partial where not all of them answer, and what
    the only one says where there is one.

    Of all regions those are left out that the account's organization closes to it: nothing can be rented there.
    """
    unanswered: list[str] = []
    errors: list[ProviderError | UsageError] = []
    wanted = list(dict.fromkeys(regions))
    if not wanted:
        wanted, unanswered, errors = _list_all_regions(account)
    calls = {region: partial(_list_region, account, home, owner, region) for region in wanted}
    found: dict[tuple[str, str], Resource] = {}
    answers = ask_all(calls, MAX_REGIONS_AT_ONCE)
    answered = sum(not isinstance(answer, ProviderError | UsageError) for answer in answers.values())
    for region, answer in answers.items():
        if isinstance(answer, ProviderError | UsageError):
            if regions or not answered or not barred(answer):
                unanswered.append(split_region(region)[0])
                errors.append(answer)
        else:
            for item in answer:  # two profiles may be of one account
                found.setdefault((item.kind, item.id), item)
    if not errors:
        return list(found.values())
    if len(wanted) == 1 or (answered == 0 and len({type(error) for error in errors}) == 1):
        raise errors[0]
    raise Partial(
        f"AWS does not tell what there is in {first_few(unanswered, 4)}: {errors[0].say}",
        errors[0].hint,
        list(found.values()),
    ) from errors[0]


def _list_all_regions(account: Account) -> tuple[list[str], list[str], list[ProviderError | UsageError]]:
    """All regions of all profiles; the profiles that could not list theirs, and their errors."""
    profiles = account.profiles()
    answers = ask_all({profile: partial(account.opted_in, profile) for profile in profiles})
    regions: list[str] = []
    unanswered: list[str] = []
    errors: list[ProviderError | UsageError] = []
    for profile, answer in answers.items():
        if isinstance(answer, ProviderError | UsageError):
            if len(answers) == 1:
                raise answer
            unanswered.append(f"the account of profile {profile}" if profile else "the account of these credentials")
            errors.append(answer)
        else:
            regions += answer
    return regions, unanswered, errors


def _list_region(account: Account, home: Path, owner: str, region: str) -> list[Resource]:
    client, where = account.client("ec2", region), split_region(region)[0]
    data = machines.account_data(account.identity_if_allowed(region), region)
    living = {"Name": "instance-state-name", "Values": [state.value for state in machines.LISTED_STATES]}
    reservations = pages(
        f"list machines in {where}",
        client,
        "describe_instances",
        "Reservations",
        Filters=machines.owner_filters(owner, living),
    )
    instances = machines.instances_of(reservations)
    alive = {item.id for item in instances}
    counting = {"Name": "state", "Values": [RequestState.OPEN.value, RequestState.ACTIVE.value]}
    requests = pages(
        f"list spot requests in {where}",
        client,
        "describe_spot_instance_requests",
        "SpotInstanceRequests",
        Filters=machines.owner_filters(owner, counting),
    )
    unattached = machines.owner_filters(owner, machines.UNATTACHED)
    volumes = pages(f"list volumes in {where}", client, "describe_volumes", "Volumes", Filters=unattached)
    doing = f"list network interfaces in {where}"
    interfaces = pages(doing, client, "describe_network_interfaces", "NetworkInterfaces", Filters=unattached)
    found = [
        *(machines.resource(item, region, home, data) for item in instances),
        *(_group_resource(item, region, data) for item in list_security_groups(client, where, owner)),
        *(
            machines.request_resource(item, region, data)
            for item in map(machines.read_request, requests)
            if item.instance not in alive
        ),
        *(machines.volume_resource(item, region, data) for item in volumes),
        *(machines.interface_resource(item, region, data) for item in interfaces),
    ]
    return [item for item in found if item.name]


def list_security_groups(client: Any, where: str, owner: str, cluster: str = "") -> list[Mapping[str, Any]]:
    """The security groups of an owner, or of one cluster, as AWS describes them. `where`: the region, for errors."""
    further = [{"Name": f"tag:{machines.CLUSTER}", "Values": [cluster]}] if cluster else []
    return pages(
        f"list security groups in {where}",
        client,
        "describe_security_groups",
        "SecurityGroups",
        Filters=machines.owner_filters(owner, *further),
    )


def _group_resource(document: Mapping[str, Any], region: str, account: Mapping[str, str], name: str = "") -> Resource:
    return machines.group_resource(str(document["GroupId"]), machines.tags_of(document), region, account, name)


def describe_resource(account: Account, home: Path, resource: Resource) -> Resource | None:
    """A resource as it is now; None where AWS knows nothing of it. Raises ProviderError."""
    client = account.client("ec2", resource.region)
    data = machines.account_data(
        account.identity_if_allowed(resource.region), resource.region, resource.data.get("account")
    )
    looks: Mapping[str, Callable[[], Resource | None]] = {
        "machine": lambda: _describe_machine(client, home, resource, data),
        machines.GROUP: lambda: _describe_group(client, resource, data),
        machines.SPOT_REQUEST: lambda: _describe_spot_request(client, resource),
        machines.VOLUME: lambda: _describe_volume(client, resource),
        machines.INTERFACE: lambda: _describe_interface(client, resource),
    }
    return looks.get(resource.kind, lambda: None)()


def _describe_machine(client: Any, home: Path, resource: Resource, data: Mapping[str, str]) -> Resource | None:
    instance = find_instance(client, resource.id)
    if instance is None:
        return None
    return machines.resource(instance, resource.region, home, data, known=resource.data, name=resource.name)


def find_instance(client: Any, id_: str) -> Instance | None:
    """The instance of that id; None where AWS knows none."""
    answer = _ask_or_empty(f"look at the machine {id_}", client.describe_instances, InstanceIds=[id_])
    return next(iter(machines.instances_of(answer.get("Reservations") or [])), None)


def _describe_group(client: Any, resource: Resource, data: Mapping[str, str]) -> Resource | None:
    doing = f"look at the security group {resource.id}"
    listed = _ask_or_empty(doing, client.describe_security_groups, GroupIds=[resource.id]).get("SecurityGroups")
    return _group_resource(listed[0], resource.region, data, resource.name) if listed else None


def _describe_spot_request(client: Any, resource: Resource) -> Resource | None:
    request = find_spot_request(client, resource.id)
    return resource if request and request.counts else None


def _describe_volume(client: Any, resource: Resource) -> Resource | None:
    doing = f"look at the volume {resource.id}"
    listed = _ask_or_empty(doing, client.describe_volumes, VolumeIds=[resource.id]).get("Volumes")
    return resource if listed and listed[0].get("State") != "deleting" else None


def _describe_interface(client: Any, resource: Resource) -> Resource | None:
    doing = f"look at the network interface {resource.id}"
    answer = _ask_or_empty(doing, client.describe_network_interfaces, NetworkInterfaceIds=[resource.id])
    return resource if answer.get("NetworkInterfaces") else None


def find_spot_request(client: Any, id_: str) -> SpotRequest | None:
    """The spot request of that id; None where AWS knows none."""
    answer = _ask_or_empty(
        f"look at the spot request {id_}", client.describe_spot_instance_requests, SpotInstanceRequestIds=[id_]
    )
    listed = answer.get("SpotInstanceRequests") or []
    return machines.read_request(listed[0]) if listed else None


def _ask_or_empty(doing: str, call: Callable[..., Any], **parameters: Any) -> dict[str, Any]:
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


IN_USE_CODES = ("DependencyViolation", "InvalidGroup.InUse", "VolumeInUse", "InvalidNetworkInterface.InUse")
"""Codes for what cannot go yet."""
UNKNOWN_MACHINE_S = 60.0
"""AWS may not list a spot request's machine for this long after the request was created."""


class Teardown:
    """One round. A resource that is gone counts as ended; one that is still in use is left for the next round."""

    def __init__(self, account: Account, now: Callable[[], float] = time.time) -> None:
        self._account = account
        self._now = now
        self._errors: list[ProviderError] = []

    def destroy(self, resources: Sequence[Resource]) -> None:
        """Raises what one of them came to, when all were asked for."""
        ends = {
            machines.SPOT_REQUEST: self._request,
            machines.VOLUME: self._volume,
            machines.INTERFACE: self._interface,
        }
        for region in dict.fromkeys(item.region for item in resources):
            here = [item for item in resources if item.region == region]
            self._try(partial(self._machines, region, [item for item in here if item.kind == "machine"]))
            for item in here:
                if end := ends.get(item.kind):
                    self._try(partial(end, item))
            busy = {machines.cluster_of(item.name) for item in here if item.kind == "machine"}
            for item in here:
                if item.kind == machines.GROUP and machines.cluster_of(item.name) not in busy:
                    self._try(partial(self._group, item))
        if self._errors:
            raise self._errors[0]

    def _try(self, end: Callable[[], None]) -> None:
        try:
            end()
        except ProviderError as error:
            self._errors.append(error)

    def _machines(self, region: str, machines_there: Sequence[Resource]) -> None:
        """All in one request; where that fails, which then has ended none, one by one."""
        if not machines_there:
            return
        client = self._account.client("ec2", region)
        try:
            ask("end machines", client.terminate_instances, InstanceIds=[item.id for item in machines_there])
        except ProviderError as error:
            if len(machines_there) == 1:
                self._unless_absent(error)
                return
            for item in machines_there:
                self._try(partial(self._machines, region, [item]))

    def _request(self, resource: Resource) -> None:
        client = self._account.client("ec2", resource.region)
        request = find_spot_request(client, resource.id)
        if request is None or not request.counts:
            return
        if request.instance and not self._machine_ended(client, request):
            return
        doing = f"cancel the spot request {resource.id}"
        try:
            ask(doing, client.cancel_spot_instance_requests, SpotInstanceRequestIds=[resource.id])
        except ProviderError as error:
            self._unless_absent(error)

    def _machine_ended(self, client: Any, request: SpotRequest) -> bool:
        """Whether a spot request's machine has ended. One that lives is ended now; one that AWS does not know may have
        been started a moment ago, and is ended in a later round."""
        instance = find_instance(client, request.instance)
        if instance and instance.state is State.TERMINATED:
            return True
        if instance is None or instance.state is not State.SHUTTING_DOWN:
            doing = f"end the machine {request.instance}"
            try:
                ask(doing, client.terminate_instances, InstanceIds=[request.instance])
            except ProviderError as error:
                self._unless_absent(error)
        return instance is None and self._now() - request.created > UNKNOWN_MACHINE_S

    def _volume(self, resource: Resource) -> None:
        client = self._account.client("ec2", resource.region)
        self._remove(f"delete the volume {resource.id}", client.delete_volume, VolumeId=resource.id)

    def _interface(self, resource: Resource) -> None:
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
            if code(error) not in IN_USE_CODES:
                self._unless_absent(error)

    def _unless_absent(self, error: ProviderError) -> None:
        if not is_absent(error):
            raise error
