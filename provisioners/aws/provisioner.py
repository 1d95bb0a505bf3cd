"""AWS as a provisioner: machines of one type in one zone, behind a security group of their own.

Nothing else is created there: our login and the first host key travel in the user data, and what is ours is known by
its tags.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gpuops.core.account_variables import OURS
from gpuops.core.errors import AuthFailed, ProviderError, QuotaExceeded, Rejected, Unknown
from gpuops.core.models import Intent, Journal, Offer, Option, Payer, Problem, Request, Resource
from gpuops.core.quota import Quota, QuotaIncrease, QuotaReport
from provisioners.aws import (
    boot_script,
    images,
    launch,
    lifecycle,
    machines,
    network,
    offers,
    options,
    policy,
    quota_report,
    tags,
)
from provisioners.aws.account import Account, Plan
from provisioners.aws.api import ask, split_region
from provisioners.aws.ec2 import Instance, SecurityGroup
from provisioners.aws.errors import FREE_PLAN, code
from provisioners.aws.launch import LaunchSpec
from provisioners.aws.lifecycle import Teardown
from provisioners.base import CONTRACT, Context
from provisioners.kit import keys
from provisioners.kit.calls import ask_all, require
from provisioners.kit.rented import CAPABILITIES
from provisioners.kit.ssh_machine import ended

CALLER_ADDRESS_VALID_S = 60.0
"""How long this computer's address is not asked for again while machines are made."""
MAX_CONSOLE_LINES = 20
"""Of a machine's console, as its last words."""


class AwsProvisioner:
    contract = CONTRACT
    name = "aws"
    capabilities = CAPABILITIES
    options: Sequence[Option] = options.OPTIONS
    examples: Sequence[str] = (
        "--gpus 1 --dry-run",
        "--gpus 4 --nodes 2 --spot --max-hours 3",
        "--gpus 1 --gpu-type a10g --region us-west-2 --max-cost 5",
        "--gpus 8 --gpu-mem 40 --wait 2h",
    )
    credentials: Sequence[str] = OURS["aws"].credentials
    surroundings: Sequence[str] = OURS["aws"].surroundings
    settle_s = 60.0
    gone_s = 1800.0  # shutting down took 19 minutes (field report, packer-plugin-amazon #682)

    def __init__(self, context: Context) -> None:
        self.context = context
        self._clock = context.clock
        self._account = Account(context.env, context.home, context.dotenv, context.clock)
        self._lock = threading.Lock()
        self._caller: tuple[float, str] | None = None
        self._groups: dict[tuple[str, ...], Resource] = {}
        """By a cluster's token, region, network and CIDR: the security group that serves all offers of one creation."""

    # Before anything is made.

    def preflight(self, request: Request) -> Sequence[Problem]:
        wishes = options.wishes(request)
        regions = self._account.regions(request)
        calls: dict[str, Callable[[], Any]] = {
            "identity": partial(self._account.identity_if_allowed, regions[0]),
            "plan": partial(self._account.plan, regions[0]),
        }
        answers = ask_all(calls)
        if isinstance(answers["identity"], AuthFailed):
            return [Problem(answers["identity"].message, answers["identity"].hint)]
        identity = require(answers["identity"])
        on_free_plan = answers["plan"] is Plan.FREE
        names = ", ".join(split_region(region)[0] for region in regions)
        account = identity.say if identity else "AWS does not say whose account this is"
        return [
            *([Problem(*FREE_PLAN, fatal=not wishes.types)] if on_free_plan else []),
            Problem(
                account, f"it looks in {names} (--region A,B for others, --profile for another account)", note=True
            ),
        ]

    def offers(self, request: Request) -> Sequence[Offer]:
        """Types and zones where all nodes may be had; each is tried until one is."""
        return offers.find_offers(self._account, options.wishes(request), self._account.regions(request))

    def provider_time(self) -> float | None:
        return self._account.server_clock.now()

    # Making.

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """A security group, unless the user named one, and all machines in one request."""
        began, spec = self._clock.monotonic(), launch.parse_offer(offer)
        self._account.record_profile(spec.region)
        host = keys.generate_key_pair()
        account = machines.account_data(self._account.identity_if_allowed(spec.region), spec.region)
        made: list[Resource] = []
        group_id = spec.security_group
        if not group_id:
            made.append(self._cluster_group(spec, intent, journal, _tags(spec, intent, host.public), account))
            group_id = made[0].id
        for index in range(spec.nodes):
            journal.will(machines.MACHINE, intent.mark(index), f"{intent.token}-{index}", spec.region)
        instances = self._launch(spec, intent, host, group_id, began)
        for instance in instances:
            made.append(machines.machine_resource(instance, spec.region, self.context.home, account))
            journal.got(made[-1])
        if len(instances) != spec.nodes:
            raise Unknown(f"AWS told of {len(instances)} machines where {spec.nodes} were asked for", "try again")
        return made

    def _launch(
        self, spec: LaunchSpec, intent: Intent, host: keys.KeyPair, group_id: str, began: float
    ) -> list[Instance]:
        """Start the machines, with the next of AWS's images where AWS has withdrawn this one. In node order."""
        _, login = keys.ensure_login_key(self.context.home)
        launcher, withdrawn = self._account.launcher(spec.region), [spec.ami]
        own_tags = _tags(spec, intent, host.public)
        while True:
            user_data = boot_script.document(host=host, login=login, user=spec.user, end=intent.boot_deadline)
            try:
                instances = launch.run_instances(
                    launcher,
                    launch.run_parameters(spec, intent, group_id, user_data, own_tags),
                    spec.say,
                    group_is_new=not spec.security_group,
                    clock=self._clock,
                    began=began,
                )
                break
            except Rejected as error:
                if code(error) not in images.GONE_CODES or not spec.is_default_image:
                    raise
                spec = self._with_another_image(spec, withdrawn)
                own_tags = _tags(spec, intent, host.public)
            except QuotaExceeded as error:
                raise launch.explain_quota_error(error, spec) from error
            except Unknown as error:
                if isinstance(error.instead, QuotaExceeded):
                    error.instead = launch.explain_quota_error(error.instead, spec)
                raise
        tagged = [dataclasses.replace(instance, tags=instance.tags or own_tags) for instance in instances]
        return sorted(tagged, key=lambda instance: instance.index)

    def _with_another_image(self, spec: LaunchSpec, withdrawn: list[str]) -> LaunchSpec:
        """The same machines with the next of AWS's images; its id is added to `withdrawn`. Raises ProviderError."""
        image = images.find_image(self._account, spec.region, options.wishes(Request(self.name)), withdrawn)
        withdrawn.append(image.id)
        return dataclasses.replace(
            spec,
            ami=image.id,
            user=image.user,
            root_device=image.root_device,
            other_devices=image.devices,
            disk_gb=max(spec.disk_gb, image.root_gb),
        )

    def _cluster_group(
        self,
        spec: LaunchSpec,
        intent: Intent,
        journal: Journal,
        own_tags: Mapping[str, str],
        account: Mapping[str, str],
    ) -> Resource:
        """The cluster's group in the network of these machines: one that an earlier offer has left, or a new one."""
        cidr = spec.ssh_from or self._caller_network()
        key = (intent.token.partition("-")[0], spec.region, spec.vpc, cidr)
        with self._lock:
            if key in self._groups:
                return self._groups[key]
        name = intent.mark(machines.GROUP)
        journal.will(machines.GROUP, name, f"{intent.token}-{machines.GROUP}", spec.region)
        id_ = network.create_group(
            self._account.launcher(spec.region),
            f"{name}-{intent.token[-8:]}",  # AWS may remember a name for a while after its end
            spec.vpc,
            tags.tag_specifications({**own_tags, "Name": name}, "security-group"),
            f"make a security group in {split_region(spec.region)[0]}",
        )
        group = machines.group_resource(SecurityGroup(id_, spec.vpc, (), own_tags), spec.region, account)
        journal.got(group)
        client = self._account.client("ec2", spec.region)
        network.open_group(client, group.id, cidr, given=bool(spec.ssh_from), clock=self._clock)
        with self._lock:
            self._groups[key] = group
        return group

    def _caller_network(self) -> str:
        """This computer's address, asked for at most once a minute."""
        with self._lock:
            now = self._clock.monotonic()
            if self._caller is None or now - self._caller[0] > CALLER_ADDRESS_VALID_S:
                self._caller = (now, network.find_caller_network(self.context.env))
            return self._caller[1]

    # Finding.

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return lifecycle.list_owned(self._account, self.context.home, owner, regions)

    def list_every_owner(self) -> Sequence[Resource]:
        return lifecycle.list_owned(self._account, self.context.home, tags.ANY_OWNER, [])

    def describe(self, resource: Resource) -> Resource:
        described = lifecycle.describe_resource(self._account, self.context.home, resource)
        if described is not None:
            return described
        self._check_account(resource)
        return ended(resource)

    def _check_account(self, resource: Resource) -> None:
        """Raises AuthFailed where what AWS does not find may be in another account, and go on there."""
        owner_account = machines.kept_account_id(resource)
        if owner_account and owner_account != (mine := self._account.identity(resource.region)).account:
            raise AuthFailed(
                f"{resource.name} is in the AWS account {owner_account}, and these credentials are {mine.name}'s of "
                f"{mine.account}",
                "use that account's again: AWS_PROFILE=…, or its AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )

    # Ending.

    def destroy(self, resources: Sequence[Resource]) -> None:
        ids = {resource.id for resource in resources}
        with self._lock:
            self._groups = {key: group for key, group in self._groups.items() if group.id not in ids}
        Teardown(self._account, self._clock).destroy(resources)

    def self_destruct(self, resource: Resource) -> Sequence[str]:
        """A machine that switches itself off is ended by AWS, which was told so when it was made."""
        user = (resource.data.get("target") or {}).get("user")
        return [*([] if user == "root" else ["sudo", "-n"]), "systemctl", "poweroff"]

    # What else can be asked.

    def admit(self, resources: Sequence[Resource]) -> bool:
        """Security groups that let in this computer alone follow its address."""
        changed = False
        clusters = dict.fromkeys((resource.region, *tags.cluster_of(resource.name)) for resource in resources)
        for region, owner, cluster in clusters:
            client = self._account.client("ec2", region)
            groups = lifecycle.list_security_groups(client, split_region(region)[0], owner, cluster)
            if any(network.followed_networks(group) for group in groups):
                cidr = network.find_caller_network(self.context.env)
                for group in groups:
                    changed = network.follow_caller(client, group, cidr) or changed
        return changed

    def last_words(self, resource: Resource) -> str:
        """The last lines of a machine's console."""
        if not resource.is_machine:
            return ""
        client = self._account.client("ec2", resource.region)
        doing = f"read the console of {resource.id}"
        read: Callable[..., Any] = client.get_console_output
        try:
            answer = ask(doing, read, InstanceId=resource.id, Latest=True)
        except Rejected as error:
            if code(error) not in ("UnsupportedOperation", "InvalidParameterCombination"):
                raise
            answer = ask(doing, read, InstanceId=resource.id)
        lines = str(answer.get("Output") or "").splitlines()
        plain = ("".join(char for char in line if char.isprintable()) for line in lines)
        return "\n".join([line.rstrip() for line in plain if line.strip()][-MAX_CONSOLE_LINES:])

    def payer(self, request: Request, patience_s: float) -> Payer:
        """Of the first region that is asked for; `preflight` has asked who this is, mostly."""
        region = self._account.regions(request)[0]
        source = self._account.source(region)
        with suppress(ProviderError):
            ask_identity = self._account.identity_if_allowed if patience_s > 0 else self._account.known_identity
            identity = ask_identity(region)
            return Payer(identity.say if identity else "", source)
        return Payer("", source)

    def quota(self, request: Request) -> QuotaReport:
        return quota_report.build_report(self._account, request)

    def request_quota(self, quota: Quota, wanted: float) -> QuotaIncrease:
        return quota_report.request_quota(self._account, quota, wanted)

    def requested_quota(self, quota: Quota, id: str) -> QuotaIncrease:
        return quota_report.requested_quota(self._account, quota, id)

    def policy(self, sink: str = "") -> Mapping[str, Any]:
        return policy.document(sink)


def _tags(spec: LaunchSpec, intent: Intent, host_key: str) -> dict[str, str]:
    return tags.build_tags(
        intent, host_key=host_key, user=spec.user, price=spec.per_hour, public=spec.has_public_address
    )
