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
from provisioners.aws.api import ask, split, sure, together
from provisioners.aws.errors import FREE_PLAN, code
from provisioners.aws.lifecycle import Ending
from provisioners.base import CONTRACT, Context

CALLER_S = 60.0
"""So long an address of this computer is taken for its present one while machines are made."""
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
        """The group of a cluster (its token) in a region's network, open to somebody: one does for all its offers."""

    # Before anything is made.

    def preflight(self, request: Request) -> Sequence[Problem]:
        given = options.wishes(request)
        regions = self._account.regions(request)
        calls: dict[str, Callable[[], Any]] = {
            "who": partial(self._account.recognised, regions[0]),
            "plan": partial(self._account.on_free_plan, regions[0]),
        }
        told = together(calls)
        if isinstance(told["who"], AuthFailed):
            return [Problem(told["who"].say, told["who"].hint)]
        who = sure(told["who"])
        free = [Problem(*FREE_PLAN, fatal=not given.types)] if told["plan"] is True else []
        names = ", ".join(split(one)[0] for one in regions)
        whose = who.say if who else "AWS does not say whose account this is"
        return [
            *free,
            Problem(whose, f"it looks in {names} (--region A,B for others, --profile for another account)", note=True),
        ]

    def offers(self, request: Request) -> Sequence[Offer]:
        """Types and zones where all nodes may be had; each is tried until one is."""
        return offers.offers(self._account, options.wishes(request), self._account.regions(request))

    # Making.

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """A security group, unless one was named, and all machines in one request."""
        began, region, data = time.monotonic(), offer.region, offer.data
        self._account.note_profile(region)
        _, login = keys.login(self.context.home)
        host = keys.new()
        told = self._tags(offer, intent, host.public)
        mine = machines.account(self._account.recognised(region), region)
        made: list[Resource] = []
        named = str(data.get("security_group") or "")
        if not named:
            made.append(self._group(offer, intent, journal, told, mine))
        for index in range(offer.nodes):
            journal.will("machine", intent.mark(index), f"{intent.token}-{index}", region)
        launcher, gone = self._account.launcher(region), [str(data["ami"])]
        try:
            while True:
                text = boot_script.document(
                    host=host, login=login, user=str(offer.data["user"]), end=intent.boot_deadline
                )
                wanted = launch.parameters(offer, intent, named or made[0].id, text, told)
                try:
                    answer = launch.start(launcher, wanted, launch.doing(offer), ours=not named, since=began)
                    break
                except Rejected as error:
                    if code(error) not in images.GONE or not data.get("ami_ours"):
                        raise
                    offer = self._with_another_image(offer, gone)
                    told = self._tags(offer, intent, host.public)
        except QuotaExceeded as error:
            raise launch.beyond(error, offer) from error
        except Unknown as error:
            if isinstance(error.instead, QuotaExceeded):
                error.instead = launch.beyond(error.instead, offer)
            raise
        there = sorted(answer.get("Instances") or [], key=lambda one: int(one.get("AmiLaunchIndex") or 0))
        for one in there:
            tagged = {**one, "Tags": one.get("Tags") or machines.listed(told)}
            made.append(machines.resource(tagged, region, self.context.home, mine))
            journal.got(made[-1])
        if len(there) != offer.nodes:
            raise Unknown(f"AWS told of {len(there)} machines where {offer.nodes} were asked for", "try again")
        return made

    def _tags(self, offer: Offer, intent: Intent, host_key: str) -> dict[str, str]:
        return machines.told(
            intent,
            host_key=host_key,
            user=str(offer.data["user"]),
            price=offer.per_hour / offer.nodes,
            public=bool(offer.data.get("public", True)),
        )

    def _with_another_image(self, offer: Offer, gone: list[str]) -> Offer:
        """The offer with the next of AWS's images, where it has taken those of the ids `gone` away since it named
        them. Raises ProviderError."""
        image = images.find(self._account, offer.region, options.wishes(Request(self.name)), gone)
        gone.append(image.id)
        return dataclasses.replace(
            offer, data={**offer.data, **image.data, "disk": max(int(offer.data["disk"]), image.root_gb)}
        )

    def _group(
        self, offer: Offer, intent: Intent, journal: Journal, told: Mapping[str, str], mine: Mapping[str, str]
    ) -> Resource:
        """The one that an offer before has left, in the same network, or a new one."""
        given = str(offer.data.get("ssh_from") or "")
        cidr = given or self._my_address()
        whose = intent.token.partition("-")[0]
        where = (whose, offer.region, str(offer.data["vpc"]), cidr)
        with self._lock:
            made = self._groups.get(where)
        if made is None:
            made = self._make_group(offer, intent, journal, told, mine, cidr, given=bool(given))
            with self._lock:
                self._groups[where] = made
        return made

    def _make_group(
        self,
        offer: Offer,
        intent: Intent,
        journal: Journal,
        told: Mapping[str, str],
        mine: Mapping[str, str],
        cidr: str,
        *,
        given: bool,
    ) -> Resource:
        region, name = offer.region, intent.mark(machines.GROUP)
        launcher, where = self._account.launcher(region), split(region)[0]
        journal.will(machines.GROUP, name, f"{intent.token}-{machines.GROUP}", region)
        group = network.make_group(
            launcher,
            f"{name}-{intent.token[-8:]}",  # AWS may remember a name for a while after its end
            str(offer.data["vpc"]),
            machines.specifications({**told, "Name": name}, "security-group"),
            f"make a security group in {where}",
        )
        made = machines.group({"GroupId": group, "Tags": machines.listed(told)}, region, mine)
        journal.got(made)
        network.open_group(
            self._account.client("ec2", region),
            group,
            cidr,
            given=given,
            doing=f"open the security group {group}",
        )
        return made

    def _my_address(self) -> str:
        with self._lock:
            if self._caller is None or time.monotonic() - self._caller[0] > CALLER_S:
                self._caller = (time.monotonic(), network.caller(self.context.env))
            return self._caller[1]

    # Finding.

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return lifecycle.owned(self._account, self.context.home, owner, regions)

    def describe(self, resource: Resource) -> Resource:
        now = lifecycle.look(self._account, self.context.home, resource)
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
        Ending(self._account).destroy(resources)

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
            groups = lifecycle.groups(client, split(region)[0], *name)
            if any(network.followed(one.get("IpPermissions") or []) for one in groups):
                cidr = network.caller(self.context.env)
                for one in groups:
                    changed = network.follow(client, one, cidr) or changed
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
            who = self._account.recognised(region) if patience_s > 0 else self._account.named(region)
            return Payer(who.say if who else "", source)
        return Payer("", source)

    def quota(self, request: Request) -> QuotaReport:
        return quota_report.report(self._account, request)

    def request_quota(self, quota: Quota, wanted: float) -> Increase:
        return quota_report.request_quota(self._account, quota, wanted)

    def requested_quota(self, quota: Quota, id: str) -> Increase:
        return quota_report.requested_quota(self._account, quota, id)

    def policy(self, sink: str = "") -> Mapping[str, Any]:
        return policy.document(sink)
