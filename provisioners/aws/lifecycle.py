"""Finding what is ours at AWS by its tags, describing one resource of it, and ending any of it.

Everything that `destroy` is asked to end may be asked for again: what is gone already counts as ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpuops.core.errors import Partial, ProviderError, UsageError
from gpuops.core.format import first_few
from gpuops.core.models import Resource
from gpuops.core.polling import Clock
from provisioners.aws import ec2, machines, tags
from provisioners.aws.account import Account
from provisioners.aws.api import Document, ask, split_region
from provisioners.aws.ec2 import InstanceState, SecurityGroup, SpotRequest
from provisioners.aws.errors import code, is_closed_by_organization
from provisioners.kit.calls import ask_all, each

MAX_REGIONS_AT_ONCE = 16
"""Regions that are listed at the same time; each makes five calls, one after another."""
UNATTACHED = {"Name": "status", "Values": ["available"]}
"""The filter for volumes and network interfaces that belong to no machine any more: both go with their machine, as a
rule."""
IN_USE_CODES = ("DependencyViolation", "InvalidGroup.InUse", "VolumeInUse", "InvalidNetworkInterface.InUse")
"""AWS's codes for what cannot go yet."""
UNKNOWN_MACHINE_S = 60.0
"""AWS may not list a spot request's machine for this long after the request was created."""


def list_owned(account: Account, home: Path, owner: str, regions: Sequence[str]) -> list[Resource]:
    """Everything with an owner's tag, in these regions or, where none is named, in all. Raises Partial with what was
    found where some regions did not answer, and the error itself where there is one region, or all failed alike.

    Of all regions those are left out that the account's organization closes to it: nothing can be rented there.
    """
    unanswered: list[str] = []
    errors: list[ProviderError | UsageError] = []
    named = list(dict.fromkeys(regions))
    if not named:
        named, unanswered, errors = _list_all_regions(account)
    calls = {region: partial(_list_region, account, home, owner, region) for region in named}
    found: dict[tuple[str, str], Resource] = {}
    answers = ask_all(calls, MAX_REGIONS_AT_ONCE)
    answered = sum(not isinstance(answer, ProviderError | UsageError) for answer in answers.values())
    for region, answer in answers.items():
        if not isinstance(answer, ProviderError | UsageError):
            for resource in answer:  # two profiles may be of one account
                found.setdefault((resource.kind, resource.id), resource)
        elif regions or not answered or not is_closed_by_organization(answer):
            unanswered.append(split_region(region)[0])
            errors.append(answer)
    if not errors:
        return list(found.values())
    if answered == 0 and len({type(error) for error in errors}) == 1:
        raise errors[0]
    raise Partial(
        f"AWS does not tell what there is in {first_few(unanswered, 4)}: {errors[0].message}",
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

    def filters(further: Document) -> list[Document]:
        return tags.owner_filters(owner, further)

    listed_states = {"Name": "instance-state-name", "Values": [state.value for state in ec2.LISTED_STATES]}
    instances = ec2.list_instances(client, f"list machines in {where}", filters(listed_states))
    alive = {instance.id for instance in instances}
    requests = ec2.list_spot_requests(client, f"list spot requests in {where}", filters(ec2.COUNTED_REQUESTS))
    volumes = ec2.list_volumes(client, f"list volumes in {where}", filters(UNATTACHED))
    interfaces = ec2.list_interfaces(client, f"list network interfaces in {where}", filters(UNATTACHED))
    found = [
        *(machines.machine_resource(instance, region, home, data) for instance in instances),
        *(machines.group_resource(group, region, data) for group in list_security_groups(client, where, owner)),
        *(machines.request_resource(request, region, data) for request in requests if request.instance not in alive),
        *(machines.volume_resource(volume, region, data) for volume in volumes),
        *(machines.interface_resource(interface, region, data) for interface in interfaces),
    ]
    return [resource for resource in found if resource.name]


def list_security_groups(client: Any, where: str, owner: str, cluster: str = "") -> list[SecurityGroup]:
    """The security groups of an owner, or of one cluster. `where`: the region, for errors."""
    further = [{"Name": f"tag:{tags.CLUSTER}", "Values": [cluster]}] if cluster else []
    return ec2.list_groups(client, f"list security groups in {where}", tags.owner_filters(owner, *further))


def describe_resource(account: Account, home: Path, resource: Resource) -> Resource | None:
    """A resource as it is now; None where AWS knows nothing of it. Raises ProviderError."""
    client, region, id_ = account.client("ec2", resource.region), resource.region, resource.id
    data = machines.account_data(account.identity_if_allowed(region), region, resource)
    if resource.kind == machines.MACHINE:
        instance = ec2.find_instance(client, id_)
        return machines.machine_resource(instance, region, home, data, resource) if instance else None
    if resource.kind == machines.GROUP:
        group = ec2.find_group(client, id_)
        return machines.group_resource(group, region, data, resource) if group else None
    if resource.kind == machines.SPOT_REQUEST:
        request = ec2.find_spot_request(client, id_)
        return resource if request and request.counts else None
    if resource.kind == machines.VOLUME:
        volume = ec2.find_volume(client, id_)
        return resource if volume and not volume.is_deleting else None
    if resource.kind == machines.INTERFACE:
        return resource if ec2.find_interface(client, id_) else None
    return None


class Teardown:
    """One round of ending resources. One that is still in use is left for the next round, which the caller makes."""

    def __init__(self, account: Account, clock: Clock) -> None:
        self._account = account
        self._clock = clock

    def destroy(self, resources: Sequence[Resource]) -> None:
        """End them as far as is possible now. Raises the first ProviderError, after all were tried."""
        end_by_kind = {
            machines.SPOT_REQUEST: self._cancel_request,
            machines.VOLUME: self._delete_volume,
            machines.INTERFACE: self._delete_interface,
        }
        ends: list[Callable[[], None]] = []
        for region in dict.fromkeys(item.region for item in resources):
            in_region = [resource for resource in resources if resource.region == region]
            running = [resource for resource in in_region if resource.kind == machines.MACHINE]
            ends.append(partial(self._end_machines, region, running))
            for resource in in_region:
                if end := end_by_kind.get(resource.kind):
                    ends.append(partial(end, resource))
            busy = {tags.cluster_of(machine.name) for machine in running}
            for resource in in_region:
                if resource.kind == machines.GROUP and tags.cluster_of(resource.name) not in busy:
                    ends.append(partial(self._delete_group, resource))
        each(ends)

    def _end_machines(self, region: str, resources: Sequence[Resource]) -> None:
        """All in one request. Where it fails it has ended none of them, and they are ended one by one."""
        if not resources:
            return
        client = self._account.client("ec2", region)
        try:
            ask("end machines", client.terminate_instances, InstanceIds=[resource.id for resource in resources])
        except ProviderError as error:
            if len(resources) == 1:
                self._unless_absent(error)
                return
            each(partial(self._end_machines, region, [resource]) for resource in resources)

    def _cancel_request(self, resource: Resource) -> None:
        client = self._account.client("ec2", resource.region)
        request = ec2.find_spot_request(client, resource.id)
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
        instance = ec2.find_instance(client, request.instance)
        if instance and instance.state is InstanceState.TERMINATED:
            return True
        if instance is None or instance.state is not InstanceState.SHUTTING_DOWN:
            doing = f"end the machine {request.instance}"
            try:
                ask(doing, client.terminate_instances, InstanceIds=[request.instance])
            except ProviderError as error:
                self._unless_absent(error)
        return instance is None and self._clock.now() - request.created > UNKNOWN_MACHINE_S

    def _delete_volume(self, resource: Resource) -> None:
        client = self._account.client("ec2", resource.region)
        self._remove(f"delete the volume {resource.id}", client.delete_volume, VolumeId=resource.id)

    def _delete_interface(self, resource: Resource) -> None:
        client, id_ = self._account.client("ec2", resource.region), resource.id
        self._remove(f"delete the network interface {id_}", client.delete_network_interface, NetworkInterfaceId=id_)

    def _delete_group(self, resource: Resource) -> None:
        client = self._account.client("ec2", resource.region)
        self._remove(f"delete the security group {resource.id}", client.delete_security_group, GroupId=resource.id)

    def _remove(self, doing: str, call: Callable[..., Any], **ids: Any) -> None:
        """Delete one thing, unless it is still in use: then it is left for the next round."""
        try:
            ask(doing, call, **ids)
        except ProviderError as error:
            if code(error) not in IN_USE_CODES:
                self._unless_absent(error)

    def _unless_absent(self, error: ProviderError) -> None:
        if not ec2.is_absent(error):
            raise error
