"""The contract of a provisioner: the few things only a provider can do.

A provisioner translates; it never waits, retries, journals on its own, or prints. Polling,
deadlines, back-off, marking and the ledger live once, in `gpuops.clusters.creation` and `gpuops.clusters.teardown`.
A third party implements this Protocol in a wheel of its own and names it in the entry point group
`gpuops.provisioners` (`name = "package.module:factory"`, called with a Context); nothing in this
repository has to change.

Every call sets a time limit for each of its requests over the network (at most 60 s) and turns off
its SDK's own retries of anything that creates. A request that a client token makes idempotent may be
repeated by the provisioner, with the same token and bounded, before it raises Unknown or RateLimited.
All but `create` may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from gpuops.core.models import DOTENV, Intent, Journal, Offer, Option, Payer, Problem, Request, Resource, SiteFact
from gpuops.core.polling import Clock
from gpuops.core.quota import Quota, QuotaIncrease, QuotaReport

CONTRACT = 1
"""Version of this contract; a provisioner states the one it was written for as `contract`."""


NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Credential:
    """A key to one account, whole, and where it came from."""

    source: str
    """As `Payer.source`."""
    values: Mapping[str, str] = field(repr=False)
    """By the names of its variables; only those that are there."""


def credential(
    env: Mapping[str, str],
    dotenv: Mapping[str, str],
    names: Sequence[str],
    stored: Callable[[], Credential | None],
    also: Sequence[str] = (),
) -> Credential | None:
    """The one order in which keys to an account are looked for: exported variables, what the provider's own tools have
    stored, the project's `.env`. The first place that has one of `names` is the only one that is used, whole or not:
    parts of two accounts are never joined. `also`: what belongs to the key, and is none alone (a session token).

    A provider's flag that names an account goes before all of this. `.env` comes last since it may have come with the
    project: in any other place it could move its reader into the account of whoever wrote it.
    """

    def held(place: Mapping[str, str], source: str) -> Credential | None:
        found = {name: place[name].strip() for name in (*names, *also) if place.get(name, "").strip()}
        return Credential(source, found) if any(name in found for name in names) else None

    return held(env, names[0]) or stored() or held(dotenv, DOTENV)


@dataclass(frozen=True)
class Context:
    """What a provisioner is given at construction, which must be cheap and touch nothing."""

    owner: str
    """8 hex digits that mark everything of this user."""
    home: Path
    """gpuops' own folder on this computer (`~/.gpuops`)."""
    env: Mapping[str, str]
    """The real environment, and settings of `.env` that choose no account (a region)."""
    dotenv: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the project's `.env` holds of the provisioner's `credentials`: the last place to look in (`credential`)."""
    clock: Clock = field(default_factory=Clock, repr=False)
    """What its waits and deadlines are counted with."""

    def credential(
        self, names: Sequence[str], stored: Callable[[], Credential | None], also: Sequence[str] = ()
    ) -> Credential | None:
        """The key to use, by the order that holds for every provider: see `credential` above."""
        return credential(self.env, self.dotenv, names, stored, also)


class Provisioner(Protocol):
    """One provider. Errors are `core.errors.ProviderError` and its children, and UsageError for what makes no sense.

    What it may have besides stands below, one Protocol for each ability; it has the methods of those that it can serve,
    under these names, and nothing has to be declared. Callers never ask whether they are there: they are handed a
    `LoadedProvisioner`.
    """

    contract: int
    name: str
    capabilities: Mapping[str, bool | str]
    """`multinode`, `spot`, `self_destruct`, `host_keys`, `rented`, `shares_disk`: True, or the sentence why not.
    Each of them is there. `rented` is True where machines cost money while they exist, `shares_disk` where a node
    sees this computer's files under the same paths (local nodes alone). Where machines are rented and `self_destruct`
    is not True, `up` says so, and the guard ends those whose nodes' watchdogs have ended them."""
    options: Sequence[Option]
    settle_s: float
    """For how many seconds `list_owned` and `describe` may not yet know what `create` has made; 0 where they
    know at once. So long is looked again before a lost answer counts as `nothing was made`."""
    credentials: Sequence[str]
    """Names of the variables with the keys to one account, which belong together (`Context.credential`). A project's
    `.env` may hold them, the guard of a cluster keeps those that it was rented with, and others take their place where
    they are refused. An attribute of the class, or of the factory where that is a function: read before it is called.
    No name begins with `GPUOPS_`."""
    surroundings: Sequence[str]
    """Names of variables that choose the account or the address that a key is sent to, and are no secret (a profile, an
    endpoint). They are read from the real environment alone: a project must not move its user into another account.
    An attribute as `credentials` is."""
    gone_s: float
    """How many seconds the end of a cluster may take at this provider, first `destroy` to empty list."""

    def preflight(self, request: Request) -> Sequence[Problem]:
        """Cheap and read-only: credentials, balance, quota. All problems at once."""

    def offers(self, request: Request) -> Sequence[Offer]:
        """Ways to satisfy the request, best first, each with exactly `request.nodes` nodes. No side effect.

        One offer is one place where all nodes can be had together (one zone, one data centre); `models.Offer` says
        what its `data` may tell the core. A wish that
        cannot be met is refused, never dropped: by a fatal Problem, an error, or by offering nothing.
        """

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """All nodes or none. `journal.will` before and `journal.got` after each effect. As a whole it has no limit of
        time, unlike all other calls: what a provider has done must be heard.

        Returns the resources, machines in node order; does not wait until they run, nor until a provider that makes
        several as one has numbered them (`machines` at `models.Resource`). Name and region given
        to `will` are the resource's later ones; the last part of a machine's name is its node's index.
        What `data` must say of a machine stands at `models.Resource`.
        Nodes of the user's own (plain SSH hosts) are created too: what is made is our folder there.
        Where the provider or the node's start-up can end a node by itself at `intent.boot_deadline`,
        that is asked for in the very call that creates it.

        Raises NoCapacity, QuotaExceeded, AuthFailed, RateLimited, Rejected: the last `will` did not
        happen; or Unknown: any open `will` may have happened. With several requests under way, raise
        when all are answered, and Unknown when one of them is not; where a later request for the same met a
        clear no, that is its `instead`, which holds once nothing is found. What was made before a failure is
        destroyed by the core, which finds it in the journal and by its mark. Where that is no machine and costs
        nothing, the core may keep it, and ask for the cluster's next offer: the provisioner can use it again.
        """

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        """Everything at the provider that carries our mark (`gpuops-<owner>-…`), in any state but `ended`
        for good (what a provider still shows for an hour after its end is left out).

        `regions`: those in which something of the cluster was intended; empty: all that the account
        can use. All pages, and never a partial answer: where one region does not answer, raise; a Partial may
        carry what the others list, which is then found, and never taken for all there is.
        """

    def describe(self, resource: Resource) -> Resource:
        """One look at a resource of any kind, never waits: state, address, port, private address, price.

        Kind, id, name and region stay what they were. What the provider does not know is no error: its state is
        `ended`; but where it may be unknown because these are another account's credentials, raise AuthFailed.
        """

    def destroy(self, resources: Sequence[Resource]) -> None:
        """Idempotent and immediate; gone already is success; knows the order that works.

        Asked again every few seconds until nothing is listed, with what was listed: what cannot go
        yet (a security group whose machines still end) is left for the next time. One that fails
        does not keep the others from being asked for: raise after all were.
        """

    def self_destruct(self, resource: Resource) -> Sequence[str] | None:
        """The argv a node's watchdog runs to end its node, with credentials the node has, in two minutes at most.

        Exit code 0 says that the end is under way; after any other it is run again, until the machine is gone.
        """


class ListsEveryOwner(Protocol):
    """What a provisioner of rented machines may have besides: a home that was lost took its owner's mark with it."""

    def list_every_owner(self) -> Sequence[Resource]:
        """As `list_owned` in all regions, of every owner: what is named `gpuops-<8 hex digits>-…`."""


class TellsBalance(Protocol):
    """Optional methods of a provisioner, either or both; absent ones are not called."""

    def balance(self) -> float | None:
        """What is left on the account in $, as the provider tells it now; None where it cannot be asked.

        Read-only. It may lag behind what has been used; `gpuops prove` compares it with its own count.
        """

    def account(self) -> Mapping[str, float | None] | None:
        """All that is known of the account's money, in one question: `balance` as above, `spend_per_hr`, what all
        that is up on the account costs ($/h), and `spend_limit`, beyond which nothing more is rented ($/h). What the
        provider does not tell is None or absent; None where it tells of no account.

        Asked aside while offers are looked for, in place of `balance`: no lease is longer than the balance lasts, and
        nothing is asked for that would go beyond the limit. Where it fails, nothing else does.
        """


class TellsPayer(Protocol):
    """What a provisioner of rented machines may have besides: the question with the price names it."""

    def payer(self, request: Request, patience_s: float) -> Payer:
        """Whose account this request's machines would be on, and where the key came from.

        The source needs no network. Where the account is not known within so many seconds, or may not be asked for, it
        is empty; 0: nobody is asked. Asked again, the same is answered without asking. Raises what `preflight` would
        where there is no key at all.
        """


class TellsTime(Protocol):
    """What a provisioner may have besides, whose machines end at `Intent.boot_deadline` by a clock that is not this
    computer's."""

    def provider_time(self) -> float | None:
        """The provider's time now (UTC seconds), as its last answer told it (HTTP's `Date`); None before there was
        one. Asks nobody. Where this computer's clock is wrong by more than a minute, `boot_deadline` goes by it.
        """


class TellsLogs(Protocol):
    """What a provisioner of rented machines may have besides."""

    def last_words(self, resource: Resource) -> str:
        """The last lines of a machine's own log; empty where there are none. Asked where one does not get ready."""


class TellsQuota(Protocol):
    """What a provisioner may have besides, where an account's limits are set for it: `gpuops quota`. Never a false no:
    what may not be read is `None`, and why."""

    def quota(self, request: Request) -> QuotaReport:
        """The quotas in the request's regions (`all`: every one that the account can use), and what the request would
        take of them, where it asks for anything (`gpus`, `gpu_type`, `gpu_mem`, several nodes). No side effect.
        """

    def request_quota(self, quota: Quota, wanted: float) -> QuotaIncrease:
        """File a request for a new total. Where one is open already, that one is returned."""

    def requested_quota(self, quota: Quota, id: str) -> QuotaIncrease:
        """One look at a request that was filed."""


class TellsPolicy(Protocol):
    """What a provisioner may have besides, where access can be granted piece by piece: `gpuops policy`."""

    def policy(self, sink: str = "") -> Mapping[str, Any]:
        """The least that a user must be allowed, as the document that the provider reads. `sink`: where results are
        kept as well (`--sink`). Asks nobody. Raises UsageError for a sink that it cannot keep anything at.
        """


class AdmitsCaller(Protocol):
    """What a provisioner may have besides, where machines let in only the address that they were made from."""

    def admit(self, resources: Sequence[Resource]) -> bool:
        """This computer's address may have changed since these were made: let it in, and the former one no longer.
        True where something had to be changed. Idempotent.

        `resources`: all that the ledger knows of one cluster, of every kind. Asked where its nodes cannot be reached,
        which are then tried once more.
        """


class KnowsMachines(Protocol):
    """What a provisioner of the user's own machines may have besides."""

    def standing(self, request: Request) -> Sequence[Resource]:
        """The machines a request speaks of, or all that are known, as they could be reached (`Resource.data`) before
        anything is created on them. Asked after `preflight`, which has said why others cannot be. No side effect.
        """


class TellsSite(Protocol):
    """What a provisioner may have besides whose machines belong to a site with rules of its own."""

    def survey(self, request: Request) -> Sequence[SiteFact]:
        """What the site has, and what this user may have of it, as far as it can be read. No side effect. Asked after
        `preflight`, which has said why it cannot be asked."""


class LaunchesOneByOne(Protocol):
    """What a provisioner may have besides whose provider makes one machine at a time, and limits how often."""

    launches_apart_s: float
    """Seconds from one launch to the next. Where `create` raises RateLimited, what it has made before is kept and
    bills: the core waits for so long (`retry_after`, where that is longer) and calls it again for the same offer, with
    that as `Intent.made`. It makes what is missing, and answers with everything. The waits are bounded: by the boot
    deadline, and in a row by four calls that make nothing more."""


class GrantsMachines(Protocol):
    """What a provisioner may have besides whose machines cost nothing and are queued for."""

    grants_machines: bool
    """True: they are granted for a time, and may be taken back. `--retries` queues for others in place of those that
    were, that failed, or whose time was over."""


class ShowsExamples(Protocol):
    """What a provisioner may have besides, for whoever types `gpuops up NAME --help`."""

    examples: Sequence[str]
    """What may stand behind `gpuops up NAME`, each a line: `--gpus 4 --max-hours 3`."""


class EndsOnlyItsOwn(Protocol):
    """What a provisioner may have besides whose machines are the user's own."""

    ends_only_its_own: bool
    """True: `destroy` itself leaves alone what was made in the place of a resource since, whose token is another. So
    what is known of a cluster may be ended before it is listed."""


class ForgetsRegions(Protocol):
    """What a provisioner may have besides where regions are machines of the user's own: `gpuops reap --forget`."""

    def forget(self, region: str) -> bool:
        """A region is gone for good, and is asked no more. False where it is not known."""


class LoadedProvisioner(Provisioner, Protocol):
    """A provisioner as `Context` hands it out: each optional method is there, and answers for a provider without it.

    `provisioners.checked_provisioner` is the only implementation.
    """

    launches_apart_s: float
    """`LaunchesOneByOne.launches_apart_s`; else 0."""
    grants_machines: bool
    """`GrantsMachines.grants_machines`; else False."""
    examples: Sequence[str]
    """`ShowsExamples.examples`; else none."""
    ends_only_its_own: bool
    """`EndsOnlyItsOwn.ends_only_its_own`; else False."""

    def list_every_owner(self) -> Sequence[Resource]:
        """`ListsEveryOwner.list_every_owner`; else none."""

    def balance(self) -> float | None:
        """`TellsBalance.balance`; else None."""

    def account(self) -> Mapping[str, float] | None:
        """`TellsBalance.account`, or what `balance` tells, without what is no finite number; else None."""

    def payer(self, request: Request, patience_s: float = 0.0) -> Payer | None:
        """`TellsPayer.payer`; else None. Never raises: on an error the payer is empty."""

    def provider_time(self) -> float | None:
        """`TellsTime.provider_time`; else None. Never raises."""

    def last_words(self, resource: Resource) -> str:
        """`TellsLogs.last_words`; else empty."""

    def quota(self, request: Request) -> QuotaReport | None:
        """`TellsQuota.quota`; else None, and the next two are not called."""

    def request_quota(self, quota: Quota, wanted: float) -> QuotaIncrease: ...
    def requested_quota(self, quota: Quota, id: str) -> QuotaIncrease: ...

    def policy(self, sink: str = "") -> Mapping[str, Any] | None:
        """`TellsPolicy.policy`; else None."""

    def admit(self, resources: Sequence[Resource]) -> bool:
        """`AdmitsCaller.admit`; else False."""

    def standing(self, request: Request) -> Sequence[Resource]:
        """`KnowsMachines.standing`; else none."""

    def survey(self, request: Request) -> Sequence[SiteFact]:
        """`TellsSite.survey`; else none."""

    def forget(self, region: str) -> bool:
        """`ForgetsRegions.forget`; else False."""


def has_capability(provisioner: Provisioner, name: str) -> bool:
    """Whether a provisioner declares a capability, rather than the sentence why it has not got it."""
    return provisioner.capabilities.get(name) is True


def is_rented(provisioner: Provisioner) -> bool:
    """Whether the machines of a provider cost money while they exist, rather than being the user's own."""
    return has_capability(provisioner, "rented")
