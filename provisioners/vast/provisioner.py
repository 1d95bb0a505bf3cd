"""Vast.ai as a provisioner: one machine at a time, which is a container on somebody's computer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from gpuops.core.account_variables import OURS
from gpuops.core.errors import AuthFailed, Rejected
from gpuops.core.models import MACHINE, Intent, Journal, Offer, Option, Payer, Problem, Request, Resource, ResourceState
from provisioners.base import CONTRACT, Context
from provisioners.checked_provisioner import CallTimeout, call_with_timeout
from provisioners.kit import boot_watch, keys
from provisioners.kit.api_key import fingerprint, has_other_key, kept_account, other_key
from provisioners.kit.calls import each
from provisioners.kit.documents import Document, entries, number, objects
from provisioners.kit.json_api import path_segment
from provisioners.vast import boot_script, offers, options
from provisioners.vast.api import KEY, VastApi
from provisioners.vast.errors import BILLING
from provisioners.vast.machines import Instance, machine, parse_instance
from provisioners.vast.offers import PRIVATE, REGION

ONE_MACHINE = (
    "machines of Vast.ai reach each other only inside one physical cluster, by an overlay network that gpuops does not "
    "make; one machine with several GPUs (--gpus 4) can be virtual nodes"
)
DIRECT_S = 60.0
"""So long a running machine that is no node is tried by its own port; then by Vast.ai's proxy: hosts block ports."""
WHAT_HOSTS_SEE = (
    "a private host is somebody's own computer: its owner can read all that is on it, code, data and what `--secret` "
    "gives (docs/security.md); --datacenter leaves those out. This is said until the first one is rented"
)


class VastProvisioner:
    contract = CONTRACT
    name = "vast"
    capabilities: Mapping[str, bool | str] = {
        "multinode": ONE_MACHINE,
        "spot": True,
        "self_destruct": True,
        "host_keys": True,
        "rented": True,
        "shares_disk": "a machine has its own disk",
    }
    options: Sequence[Option] = options.OPTIONS
    examples: Sequence[str] = (
        "--gpus 1 --dry-run",
        "--gpus 2 --gpu-type 4090 --max-price 1 --max-hours 3",
        "--gpus 4 --gpu-mem 40 --datacenter --region SE,NO",
        "--spot --bid 0.25 --max-cost 2",
    )
    credentials: Sequence[str] = OURS["vast"].credentials
    surroundings: Sequence[str] = OURS["vast"].surroundings
    settle_s = 30.0
    gone_s = 120.0

    def __init__(self, context: Context) -> None:
        self.context = context
        self._api = VastApi(context)
        self._user: Document = {}
        self._running_since: dict[str, float] = {}
        """By id: since when a machine that is no node yet runs, by the monotonic clock."""

    # Before anything is made.

    def preflight(self, request: Request) -> Sequence[Problem]:
        options.wishes(request)
        try:
            balance = self.balance()
        except (AuthFailed, Rejected) as error:
            return [Problem(error.message, error.hint)]
        if balance is not None and balance <= 0:
            return [Problem("there is no credit on the Vast.ai account", f"add credit: {BILLING}")]
        return []

    def offers(self, request: Request) -> Sequence[Offer]:
        wishes = options.wishes(request)
        doing = "search offers"
        names = self._api.get("/api/v0/gpu_names/unique/", "list GPUs") if request.gpu_type else {}
        wanted = offers.named_gpus([str(name) for name in entries(names, "gpu_names")], request.gpu_type)
        body = offers.search_body(wishes, request, wanted)
        found = objects(self._api.post("/api/v0/bundles/", body, doing, creating=False) or {}, "offers")
        made = offers.offers(found, wishes, request)
        if any(map(_is_private, made)) and not self._warned.exists():
            made[0] = dataclasses.replace(made[0], notes=(WHAT_HOSTS_SEE, *made[0].notes))
        return made

    @property
    def _warned(self) -> Path:
        return self.context.home / "vast-private-hosts"

    # Making.

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """One machine. Its environment holds all that adopting it takes when no answer comes."""
        name, token = intent.mark(0), f"{intent.token}-0"
        _, login = keys.ensure_login_key(self.context.home)
        env = {**boot_watch.variables(intent.boot_deadline, token, keys.generate_key_pair()), boot_script.LOGIN: login}
        bid = offer.data["bid"]
        body = {
            "client_id": "me",
            "image": offer.data["image"],
            "disk": offer.data["disk"],
            "label": name,
            "runtype": "ssh_direc ssh_proxy",  # so spelt by Vast.ai's own client
            "env": env,
            "onstart": boot_script.build_script(self._api.address()),
            "cancel_unavail": True,
            "target_state": "running",
            **({} if bid is None else {"price": bid}),  # without: on demand
        }
        account = self._account()  # once it is made nothing may fail until that is noted
        journal.will(MACHINE, name, token, REGION)
        id, refusal = self._api.create(offer.id, body, "rent a machine")
        ends = number(offer.data.get("ends"))
        new = Instance(id, name, env=env, is_bid=bid is not None, gpu_hourly=offer.per_hour, ends=ends)
        made = machine(new, None, self.context.home, account, by_proxy=False)
        journal.got(made)
        if refusal:
            raise refusal
        if _is_private(offer):
            self._warned.touch()
        return [made]

    # Finding and ending.

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return [] if regions and REGION not in regions else self._marked(f"gpuops-{owner}-")

    def list_every_owner(self) -> Sequence[Resource]:
        return self._marked("gpuops-")

    def _marked(self, prefix: str) -> list[Resource]:
        found = [parse_instance(document) for document in self._api.instances()]
        return [self._resource(one, None) for one in found if one.label.startswith(prefix)]

    def describe(self, resource: Resource) -> Resource:
        document = self._api.instance(resource.id)
        if document is not None:
            now = self._resource(parse_instance(document), resource)
            return dataclasses.replace(now, name=resource.name)
        self._check_account(resource)
        return dataclasses.replace(resource, state=ResourceState.ENDED, address="", port=0, per_hour=0.0)

    def _resource(self, one: Instance, kept: Resource | None) -> Resource:
        return machine(one, kept, self.context.home, self._account(kept), self._by_proxy(one, kept))

    def _by_proxy(self, one: Instance, kept: Resource | None) -> bool:
        """A node stays where it was reached first."""
        if not (one.direct[0] and one.proxy[0]):
            return not one.direct[0]
        if kept and kept.data.get("artefact"):
            return bool(kept.data.get("proxy"))
        now = self.context.clock.monotonic()
        return now - self._running_since.setdefault(one.id, now) >= DIRECT_S

    def destroy(self, resources: Sequence[Resource]) -> None:
        ids = [path_segment(resource.id) for resource in resources]
        each([partial(self._api.delete, f"/api/v0/instances/{id}/", "destroy an instance", body={}) for id in ids])

    def self_destruct(self, resource: Resource) -> Sequence[str]:
        return ["sh", "-c", boot_script.DESTROY, "gpuops", self._api.address()]

    # The account.

    def _account(self, kept: Resource | None = None) -> dict[str, str]:
        """Whose a machine is. `kept`: as the ledger knows it, with its account, which was not asked for now."""
        key, before = fingerprint(self._api.credential().values[KEY]), kept_account(kept) if kept else {}
        known = before.get("id") if before.get("key") == key else ""
        return {"key": key, "id": str(self._user.get("id") or known or "")}

    def _check_account(self, resource: Resource) -> None:
        """Raises AuthFailed where what Vast.ai does not find may be another account's, and go on there."""
        if has_other_key(resource, self._api.credential().values[KEY]):
            self._user = self._api.user()
            if kept_account(resource).get("id") != self._account()["id"]:
                raise other_key(resource, KEY)

    def provider_time(self) -> float | None:
        return self._api.server_time()

    def balance(self) -> float | None:
        """What was paid in before is the `credit` (a field of Vast.ai's own client, not in its description); what such
        an account has spent of it may stand in its `balance` for a while, below 0."""
        self._user = self._api.user()
        told = [number(self._user[name]) for name in ("balance", "credit") if name in self._user]
        return sum(told) if told else None

    def payer(self, request: Request, patience_s: float) -> Payer:
        source = self._api.credential().source
        if patience_s > 0 and not self._user:
            try:
                self._user = call_with_timeout(self._api.user, patience_s, "payer")
            except CallTimeout:
                pass
        return Payer(str(self._user.get("email") or ""), source)


def _is_private(offer: Offer) -> bool:
    return str(offer.data.get("hosted_by")).endswith(PRIVATE)
