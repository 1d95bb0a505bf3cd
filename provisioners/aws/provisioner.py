"""AWS as a provisioner: machines of one type in one zone, behind a security group of their own.

No other thing is made: our login and the first host key travel in the user data, and the marks are tags.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gpuops.core.errors import AuthFailed, ProviderError, QuotaExceeded, Rejected, Unknown
from gpuops.core.models import (
    Increase,
    Intent,
    Journal,
    Offer,
    Option,
    Payer,
    Problem,
    Quota,
    QuotaReport,
    Request,
    Resource,
)
from provisioners import keys
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
)
from provisioners.aws.account import Account
from provisioners.aws.api import ask, ask_all, require, split_region
from provisioners.aws.errors import FREE_PLAN, code
from provisioners.aws.lifecycle import Teardown
from provisioners.aws.machines import Instance
from provisioners.base import CONTRACT, Context

CALLER_ADDRESS_VALID_S = 60.0
"""How long this computer's address is not asked for again while machines are made."""
LAST_LINES = 20


class AwsProvisioner:
    contract = CONTRACT
    name = "aws"
    capabilities: Mapping[str, bool | str] = {
        "multinode": True,
        "spot": True,
        "self_destruct": True,
        "host_keys": True,
        "rented": True,
        "shares_disk": "a machine has its own disk",
    }
    options: Sequence[Option] = options.OPTIONS
    settle_s = 60.0
    gone_s = 1800.0  # shutting down took 19 minutes (field report, packer-plugin-amazon #682)

    def __init__(self, context: Context) -> None:
        self.context = context
        self._account = Account(context.env, context.home, context.dotenv)
        self._lock = threading.Lock()
        self._caller: tuple[float, str] | None = None
        self._groups: dict[tuple[str, ...], Resource] = {}
        """By a cluster's token, region, network and CIDR: the security group that serves all offers of one creation."""

    # Before anything is made.

    def preflight(self, request: Request) -> Sequence[Problem]:
        given = options.wishes(request)
        regions = self._account.regions(request)
        calls: dict[str, Callable[[], Any]] = {
            "who": partial(self._account.identity_if_allowed, regions[0]),
            "plan": partial(self._account.on_free_plan, regions[0]),
        }
        told = ask_all(calls)
        if isinstance(told["who"], AuthFailed):
            return [Problem(told["who"].say, told["who"].hint)]
        who = require(told["who"])
        free = [Problem(*FREE_PLAN, fatal=not given.types)] if told["plan"] is True else []
        names = ", ".join(split_region(one)[0] for one in regions)
        whose = who.say if who else "AWS does not say whose account this is"
        return [
            *free,
            Problem(whose, f"it looks in {names} (--region A,B for others, --profile for another account)", note=True),
        ]

    def offers(self, request: Request) -> Sequence[Offer]:
        """Types and zones where all nodes may be had; each is tried until one is."""
        return offers.find_offers(self._account, options.wishes(request), self._account.regions(request))

    # Making.

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """A security group, unless the user named one, and all machines in one request."""
        began, region = time.monotonic(), offer.region
        self._account.record_profile(region)
        host = keys.generate_key_pair()
        account = machines.account_data(self._account.identity_if_allowed(region), region)
        made: list[Resource] = []
        group = str(offer.data.get("security_group") or "")
        is_ours = not group
        if is_ours:
            made.append(self._group(offer, intent, journal, _tags(offer, intent, host.public), account))
            group = made[0].id
        for index in range(offer.nodes):
            journal.will("machine", intent.mark(index), f"{intent.token}-{index}", region)
        instances = self._launch(offer, intent, host, group, is_ours=is_ours, began=began)
        for instance in instances:
            made.append(machines.resource(instance, region, self.context.home, account))
            journal.got(made[-1])
        if len(instances) != offer.nodes:
            raise Unknown(f"AWS told of {len(instances)} machines where {offer.nodes} were asked for", "try again")
        return made

    def _launch(
        self, offer: Offer, intent: Intent, host: keys.KeyPair, group: str, *, is_ours: bool, began: float
    ) -> list[Instance]:
        """Start an offer's machines, with the next of AWS's images where AWS has withdrawn the offer's."""
        _, login = keys.ensure_login_key(self.context.home)
        launcher, withdrawn = self._account.launcher(offer.region), [str(offer.data["ami"])]
        try:
            while True:
                user = str(offer.data["user"])
                text = boot_script.document(host=host, login=login, user=user, end=intent.boot_deadline)
                tags = _tags(offer, intent, host.public)
                wanted = launch.run_parameters(offer, intent, group, text, tags)
                try:
                    answer = launch.run_instances(
                        launcher, wanted, launch.describe_launch(offer), ours=is_ours, since=began
                    )
                    break
                except Rejected as error:
                    if code(error) not in images.GONE_CODES or not offer.data.get("ami_ours"):
                        raise
                    offer = self._with_another_image(offer, withdrawn)
        except QuotaExceeded as error:
            raise launch.explain_quota_error(error, offer) from error
        except Unknown as error:
            if isinstance(error.instead, QuotaExceeded):
                error.instead = launch.explain_quota_error(error.instead, offer)
            raise
        instances = [machines.read(one) for one in answer.get("Instances") or []]
        tagged = [dataclasses.replace(one, tags=one.tags or tags) for one in instances]
        return sorted(tagged, key=lambda one: one.index)

    def _with_another_image(self, offer: Offer, withdrawn: list[str]) -> Offer:
        """The offer with the next of AWS's images; its id is added to `withdrawn`. Raises ProviderError."""
        image = images.find_image(self._account, offer.region, options.wishes(Request(self.name)), withdrawn)
        withdrawn.append(image.id)
        return dataclasses.replace(
            offer, data={**offer.data, **image.data, "disk": max(int(offer.data["disk"]), image.root_gb)}
        )

    def _group(
        self, offer: Offer, intent: Intent, journal: Journal, tags: Mapping[str, str], account: Mapping[str, str]
    ) -> Resource:
        """The cluster's group in the offer's network: one that an earlier offer has left, or a new one."""
        given = str(offer.data.get("ssh_from") or "")
        cidr = given or self._my_address()
        where = (intent.token.partition("-")[0], offer.region, str(offer.data["vpc"]), cidr)
        with self._lock:
            group = self._groups.get(where)
        if group is None:
            group = self._make_group(offer, intent, journal, tags, account)
            doing = f"open the security group {group.id}"
            client = self._account.client("ec2", offer.region)
            network.open_group(client, group.id, cidr, given=bool(given), doing=doing)
            with self._lock:
                self._groups[where] = group
        return group

    def _make_group(
        self, offer: Offer, intent: Intent, journal: Journal, tags: Mapping[str, str], account: Mapping[str, str]
    ) -> Resource:
        region, name = offer.region, intent.mark(machines.GROUP)
        journal.will(machines.GROUP, name, f"{intent.token}-{machines.GROUP}", region)
        id_ = network.create_group(
            self._account.launcher(region),
            f"{name}-{intent.token[-8:]}",  # AWS may remember a name for a while after its end
            str(offer.data["vpc"]),
            machines.tag_specifications({**tags, "Name": name}, "security-group"),
            f"make a security group in {split_region(region)[0]}",
        )
        group = machines.group_resource(id_, tags, region, account)
        journal.got(group)
        return group

    def _my_address(self) -> str:
        with self._lock:
            if self._caller is None or time.monotonic() - self._caller[0] > CALLER_ADDRESS_VALID_S:
                self._caller = (time.monotonic(), network.find_caller_network(self.context.env))
            return self._caller[1]

    # Finding.

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return lifecycle.list_owned(self._account, self.context.home, owner, regions)

    def describe(self, resource: Resource) -> Resource:
        now = lifecycle.describe_resource(self._account, self.context.home, resource)
        if now is not None:
            return now
        self._check_account(resource)
        return dataclasses.replace(resource, state="ended", address="", port=0, per_hour=0.0)

    def _check_account(self, resource: Resource) -> None:
        """Raises AuthFailed where what AWS does not find may be in another account, and go on there."""
        kept = resource.data.get("account")
        theirs = str((kept if isinstance(kept, Mapping) else {}).get("id") or "")
        if theirs and theirs != (mine := self._account.identity(resource.region)).account:
            raise AuthFailed(
                f"{resource.name} is in the AWS account {theirs}, and these credentials are {mine.name}'s of "
                f"{mine.account}",
                "use that account's again: AWS_PROFILE=…, or its AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )

    # Ending.

    def destroy(self, resources: Sequence[Resource]) -> None:
        ids = {one.id for one in resources}
        with self._lock:
            self._groups = {where: one for where, one in self._groups.items() if one.id not in ids}
        Teardown(self._account).destroy(resources)

    def self_destruct(self, resource: Resource) -> Sequence[str]:
        """A machine that switches itself off is ended by AWS, which was told so when it was made."""
        user = (resource.data.get("target") or {}).get("user")
        return [*([] if user == "root" else ["sudo", "-n"]), "systemctl", "poweroff"]

    # What else can be asked.

    def admit(self, resources: Sequence[Resource]) -> bool:
        """Security groups that let in this computer alone follow its address."""
        changed = False
        for region, name in dict.fromkeys((one.region, machines.cluster_of(one.name)) for one in resources):
            client = self._account.client("ec2", region)
            groups = lifecycle.list_security_groups(client, split_region(region)[0], *name)
            if any(network.followed_networks(one.get("IpPermissions") or []) for one in groups):
                cidr = network.find_caller_network(self.context.env)
                for one in groups:
                    changed = network.follow_caller(client, one, cidr) or changed
        return changed

    def last_words(self, resource: Resource) -> str:
        """The last lines of a machine's console."""
        if resource.kind != "machine":
            return ""
        client = self._account.client("ec2", resource.region)
        doing = f"read the console of {resource.id}"
        read: Callable[..., Any] = client.get_console_output
        try:
            told = ask(doing, read, InstanceId=resource.id, Latest=True)
        except Rejected as error:
            if code(error) not in ("UnsupportedOperation", "InvalidParameterCombination"):
                raise
            told = ask(doing, read, InstanceId=resource.id)
        plain = (
            "".join(char for char in line if char.isprintable()) for line in str(told.get("Output") or "").splitlines()
        )
        return "\n".join([line.rstrip() for line in plain if line.strip()][-LAST_LINES:])

    def payer(self, request: Request, patience_s: float) -> Payer:
        """Of the first region that is asked for; `preflight` has asked who this is, mostly."""
        region = self._account.regions(request)[0]
        source = self._account.source(region)
        with suppress(ProviderError):
            who = self._account.identity_if_allowed(region) if patience_s > 0 else self._account.known_identity(region)
            return Payer(who.say if who else "", source)
        return Payer("", source)

    def quota(self, request: Request) -> QuotaReport:
        return quota_report.build_report(self._account, request)

    def request_quota(self, quota: Quota, wanted: float) -> Increase:
        return quota_report.request_quota(self._account, quota, wanted)

    def requested_quota(self, quota: Quota, id: str) -> Increase:
        return quota_report.requested_quota(self._account, quota, id)

    def policy(self, sink: str = "") -> Mapping[str, Any]:
        return policy.document(sink)


def _tags(offer: Offer, intent: Intent, host_key: str) -> dict[str, str]:
    return machines.tags_for(
        intent,
        host_key=host_key,
        user=str(offer.data["user"]),
        price=offer.per_hour / offer.nodes,
        public=bool(offer.data.get("public", True)),
    )
