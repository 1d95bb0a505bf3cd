"""A provisioner of machines that are rented by an HTTP API with one key: the contract, but for what a provider does its
own way.

A provider's class says what it is (`name`, `service`, `capabilities`, `options`) and has five methods: `offers`,
`launch`, `list_machines`, `find_machine` and `end_machine`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from gpuops.core.errors import AuthFailed, ProviderError, RateLimited, Rejected
from gpuops.core.models import MACHINE, Intent, Journal, Offer, Option, Payer, Problem, Request, Resource, ResourceState
from provisioners.base import CONTRACT, Context
from provisioners.kit import container_boot
from provisioners.kit.account import AccountFacts, KeyAccount
from provisioners.kit.calls import each
from provisioners.kit.container_boot import ContainerBoot
from provisioners.kit.json_api import JsonApi, RefusedAndMade
from provisioners.kit.keys import KeyPair, ensure_login_key, generate_key_pair
from provisioners.kit.options import OwnOptions
from provisioners.kit.service import Service
from provisioners.kit.ssh_machine import Login, Machine, ended, machine_resource

CAPABILITIES: Mapping[str, bool | str] = MappingProxyType(
    {
        **dict.fromkeys(("multinode", "spot", "self_destruct", "host_keys", "rented"), True),
        "shares_disk": "a machine has its own disk",
    }
)
DIRECT_S = 60.0
"""So long a running machine that is no node is tried by its own port; then by its provider's proxy."""
PRIVATE_HOSTS = (
    "a private host is somebody's own computer: its owner can read all that is on it, code, data and what `--secret` "
    "gives (docs/security.md)"
)


def all_but(**lacking: str) -> Mapping[str, bool | str]:
    """The capabilities of rented machines, with the sentence why for each that is lacking:
    `all_but(spot="it has one price")`."""
    return MappingProxyType({**CAPABILITIES, **lacking})


@dataclass(frozen=True)
class NewMachine:
    """A machine that is about to be made."""

    name: str
    """Our mark: it must come back from the provider's list, as the next two."""
    token: str
    host: KeyPair
    """The host key of its first minutes."""
    login: str
    """The public half of our key."""
    login_name: str
    """As `register_login` answers."""
    end: float
    """When it should end by itself unless it is a node by then (UTC seconds)."""

    def boot_variables(self) -> dict[str, str]:
        """What the environment of a container holds for its boot script."""
        return container_boot.variables(self.end, self.token, self.host, self.login)


class RentedProvisioner(ABC):
    """May be used from any thread. Construction touches nothing."""

    contract = CONTRACT
    name: ClassVar[str]
    service: ClassVar[Service]
    capabilities: Mapping[str, bool | str] = CAPABILITIES
    wishes: ClassVar[type[OwnOptions] | None] = None
    """The provider's own flags; or `options`, where they are not fields."""
    options: Sequence[Option] = ()
    credentials: Sequence[str] = ()
    surroundings: Sequence[str] = ()
    """Those two are taken from `service` where a class does not name them itself."""
    settle_s = 30.0
    gone_s = 600.0
    launches_apart_s = 0.0
    api_class: ClassVar[type[JsonApi]] = JsonApi
    boot: ClassVar[ContainerBoot | None] = None
    """Of a provider's containers, which end themselves by it."""
    without_private_hosts: ClassVar[str] = ""
    """What leaves private hosts out: `--datacenter leaves those out`."""
    balance_valid_s = 0.0
    """How long an answer about money counts as the present one."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if service := getattr(cls, "service", None):
            cls.credentials = cls.credentials or (service.key_variable,)
            cls.surroundings = cls.surroundings or (service.address_variable,)
        if cls.wishes:
            cls.options = cls.wishes.flags()

    def __init__(self, context: Context) -> None:
        self.context = context
        self.api = self.api_class(self.service, context)
        self.key_account = KeyAccount(self.api, context.clock, self.ask_account)
        self._running_since: dict[str, float] = {}
        """By id: since when a machine that is no node yet runs, by the monotonic clock."""
        self._private_hosts_are_known = context.home / f"{self.name}-private-hosts"

    # What a provider does its own way.

    @abstractmethod
    def offers(self, request: Request) -> Sequence[Offer]:
        """As in the contract."""

    @abstractmethod
    def launch(self, offer: Offer, new: NewMachine) -> Machine | str:
        """Make one machine by one request that creates (`JsonApi.create`, `JsonApi.post`), and return it, or its id
        alone. Every error but Unknown means that nothing was made, and RefusedAndMade that it was."""

    @abstractmethod
    def list_machines(self) -> Sequence[Machine]:
        """All machines of the account, whoever made them. Never a partial answer."""

    @abstractmethod
    def find_machine(self, resource: Resource) -> Machine | None:
        """One of them as it is now; None where the provider does not know it."""

    @abstractmethod
    def end_machine(self, resource: Resource) -> object:
        """Ask for its end; that it is gone already is no error. Does not wait."""

    def problems(self, request: Request) -> Sequence[Problem]:
        """What `preflight` finds. AuthFailed and Rejected become problems; without more, that the key is accepted, and
        that there is money, where the provider tells that."""
        facts = self.key_account.facts(max_age_s=0.0)
        if not facts.id:
            self.list_machines()
        if facts.balance is None or facts.balance > 0:
            return []
        return [Problem(f"there is no credit on the {self.service.name} account", self.service.no_money)]

    def register_login(self, public: str) -> str:
        """The name of our login's key in the account, at a provider whose launches name one
        (`keys.ensure_registered`)."""
        return ""

    def ask_account(self) -> AccountFacts:
        """Whose account the key is of, where the provider tells."""
        return AccountFacts()

    # The contract.

    def preflight(self, request: Request) -> Sequence[Problem]:
        if self.wishes:
            self.wishes.parse(request)
        try:
            return self.problems(request)
        except (AuthFailed, Rejected) as error:
            return [Problem(error.message, error.hint)]

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """One machine after another, but for those that an earlier call has made (`Intent.made`)."""
        made = {resource.name: resource for resource in intent.made}
        names = [intent.mark(index) for index in range(offer.nodes)]
        _, login = ensure_login_key(self.context.home)
        account = self.key_account.data()  # once one is made nothing may fail until that is noted
        login_name = self.register_login(login)
        for index, name in enumerate(names):
            if name in made:
                continue
            if wait_s := self.api.pace("launches", self.launches_apart_s).try_now():
                say = f"{self.service.name} starts one machine at a time"
                raise RateLimited(say, "wait a little", retry_after=wait_s)
            token, host = f"{intent.token}-{index}", generate_key_pair()
            new = NewMachine(name, token, host, login, login_name, intent.boot_deadline)
            journal.will(MACHINE, name, token, offer.region)
            machine, refusal = self._launch(offer, new)
            made[name] = self._resource(machine, account)
            journal.got(made[name])
            if refusal:
                raise refusal
        if offer.data.get("private"):
            with suppress(OSError):  # a full disk: it is said once more, and what was made stays made
                self._private_hosts_are_known.touch()
        return [made[name] for name in names]

    def _launch(self, offer: Offer, new: NewMachine) -> tuple[Machine, ProviderError | None]:
        refusal = None
        try:
            made = self.launch(offer, new)
        except RefusedAndMade as told:
            made, refusal = told.made, told.refusal
        if isinstance(made, str):
            login, per_hour = Login("", "", 0, new.host.public), offer.per_hour / offer.nodes
            made = Machine(made, new.name, offer.region, ResourceState.STARTING, login, new.token, per_hour)
        return made, refusal

    def _resource(self, machine: Machine, account: Mapping[str, str], previous: Resource | None = None) -> Resource:
        data, login = dict(machine.data), machine.login
        if self.boot:
            data["boot_watch"] = container_boot.FOLDER
        if machine.proxy[0] and machine.state is ResourceState.RUNNING:
            data["proxy"] = by_proxy = self._is_by_proxy(machine, previous)
            host, port = machine.proxy if by_proxy else (login.host, login.port)
            login = dataclasses.replace(login, host=host, port=port)
        machine = dataclasses.replace(machine, login=login, data=data)
        return machine_resource(machine, self.context.home, account, previous)

    def _is_by_proxy(self, machine: Machine, previous: Resource | None) -> bool:
        """A node stays where it was reached first; hosts may block the ports of their machines."""
        if not machine.login.host:
            return True
        if previous and previous.data.get("artefact"):
            return bool(previous.data.get("proxy"))
        now = self.context.clock.monotonic()
        return now - self._running_since.setdefault(machine.id, now) >= DIRECT_S

    def warn_of_hosts(self, made: Sequence[Offer]) -> list[Offer]:
        """Offers whose first one says what a private host's owner sees, where some have `data["private"]`."""
        if not made or self._private_hosts_are_known.exists() or not any(one.data.get("private") for one in made):
            return list(made)
        note = f"{PRIVATE_HOSTS}; {self.without_private_hosts}. This is said until the first one is rented"
        return [dataclasses.replace(made[0], notes=(note, *made[0].notes)), *made[1:]]

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        listed = self.list_marked(f"gpuops-{owner}-")
        if not regions or "" in regions:
            return listed
        return [one for one in listed if one.region in ("", *regions)]  # "": the provider did not say

    def list_every_owner(self) -> Sequence[Resource]:
        return self.list_marked("gpuops-")

    def list_marked(self, prefix: str) -> Sequence[Resource]:
        """Everything whose mark begins so."""
        account = self.key_account.data()
        return self.marked_machines(prefix, self.list_machines(), account)

    def marked_machines(self, prefix: str, listed: Sequence[Machine], account: Mapping[str, str]) -> list[Resource]:
        """Of a list, those whose mark begins so. `account`: as it was before it was asked for."""
        self.key_account.saw(account, [machine.id for machine in listed])
        ours = [machine for machine in listed if machine.name.startswith(prefix)]
        found = [self._resource(machine, account) for machine in ours]
        return [resource for resource in found if resource.state is not ResourceState.ENDED]

    def describe(self, resource: Resource) -> Resource:
        account, found = self.key_account.data(resource), self.find_machine(resource)
        if found is None:
            return self.ended(resource)
        self.key_account.saw(account, [found.id])
        return self._resource(found, account, resource)

    def ended(self, resource: Resource) -> Resource:
        """What the provider does not find. Raises AuthFailed where it may be another account's, and go on there."""
        self.key_account.check(resource)
        return ended(resource)

    def destroy(self, resources: Sequence[Resource]) -> None:
        each(partial(self.end_machine, resource) for resource in resources)

    def self_destruct(self, resource: Resource) -> Sequence[str] | None:
        return self.boot.end_argv(self.api.address, resource) if self.boot else None

    def balance(self) -> float | None:
        return self.key_account.facts(self.balance_valid_s).balance

    def account(self) -> Mapping[str, Any] | None:
        """Those of `AccountFacts` that are known; None where the provider tells of no account."""
        tells = type(self).ask_account is not RentedProvisioner.ask_account
        return self.key_account.facts(self.balance_valid_s).document() if tells else None

    def provider_time(self) -> float | None:
        return self.api.server_time()

    def payer(self, request: Request, patience_s: float) -> Payer:
        return self.key_account.payer(patience_s)
