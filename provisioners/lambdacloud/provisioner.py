"""Lambda as a provisioner: on-demand machines, each of a launch of its own, 12 s from one another.

No machine can end itself: nothing in it stops its bill, and a key to the whole account stays on the user's computer.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from gpuops.core.account_variables import OURS
from gpuops.core.errors import AuthFailed, RateLimited, Rejected, Unknown
from gpuops.core.models import MACHINE, Intent, Journal, Offer, Option, Payer, Problem, Request, Resource, ResourceState
from gpuops.core.names import did_you_mean
from provisioners.base import CONTRACT, Context
from provisioners.kit import cloud_init, keys
from provisioners.kit.api_key import fingerprint, has_other_key, other_key
from provisioners.kit.calls import each
from provisioners.kit.documents import Document
from provisioners.kit.gpu_names import join_names
from provisioners.kit.json_api import path_segment
from provisioners.lambdacloud import api, catalog, machines
from provisioners.lambdacloud.api import Api

IMAGE = "lambda-stack-24-04"
"""A family: without one, Lambda takes another Ubuntu in each region."""
IMAGE_ID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")
MAX_USER_DATA_BYTES = 1_000_000


class LambdaProvisioner:
    contract = CONTRACT
    name = "lambda"
    capabilities: Mapping[str, bool | str] = {
        "multinode": True,
        "spot": "Lambda has one price for a machine",
        "self_destruct": "Lambda bills one that is shut down as well, and only the account's own key ends it",
        "host_keys": True,
        "rented": True,
        "shares_disk": "a machine has its own disk",
    }
    options: Sequence[Option] = (
        Option(catalog.INSTANCE_TYPE, "One of Lambda's types by its name (gpu_8x_h100_sxm5, cpu_4x_general)."),
    )
    examples: Sequence[str] = (
        "--gpus 1 --dry-run",
        "--gpus 1 --gpu-type a10 --max-hours 2",
        "--gpus 8 --gpu-type h100 --nodes 2 --region us-west-3 --max-cost 100",
        "--instance-type gpu_1x_gh200 --wait 2h",
    )
    credentials: Sequence[str] = OURS["lambda"].credentials
    surroundings: Sequence[str] = OURS["lambda"].surroundings
    settle_s = 30.0
    gone_s = 600.0
    launches_apart_s = api.LAUNCHES_APART_S

    def __init__(self, context: Context) -> None:
        self.context = context
        self._api = Api(context)
        self._seen: set[tuple[str, str]] = set()
        """A key's fingerprint and the id of a machine that Lambda has told it of: it is of the same account, whatever
        key made it."""

    # Before anything is made.

    def preflight(self, request: Request) -> Sequence[Problem]:
        """What Lambda has no question for, a quota and the money, is told when a machine is launched."""
        try:
            images = self._list("/images", "list images")
        except (AuthFailed, Rejected) as error:
            return [Problem(error.message, error.hint)]
        regions = {str((image.get("region") or {}).get("name") or "") for image in images}
        names = {str(image.get(field)) for image in images for field in ("family", "id")}
        return [
            *_unknown(catalog.split_regions(request.region), regions, "region"),
            *_unknown([request.image or IMAGE], names, "image family"),
        ]

    def offers(self, request: Request) -> Sequence[Offer]:
        return catalog.find_offers(self._kinds(), request, request.image or IMAGE)

    def _kinds(self) -> list[catalog.Kind]:
        answer = self._api.get("/instance-types", doing := "list instance types")
        if not isinstance(answer, dict):
            raise self._api.unreadable(answer, doing)
        return catalog.parse_kinds(answer)

    # Making.

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        made = {resource.name: resource for resource in intent.made}
        missing = [index for index in range(offer.nodes) if intent.mark(index) not in made]
        key_name = self._register_login()
        for index in missing:
            if wait_s := self._api.pace("launches", self.launches_apart_s).try_now():
                raise RateLimited("Lambda starts one machine at a time", "wait a little", retry_after=wait_s)
            host, token = keys.generate_key_pair(), f"{intent.token}-{index}"
            body = self._launch_body(offer, intent.mark(index), token, host, key_name)
            journal.will(MACHINE, intent.mark(index), token, offer.region)
            made[intent.mark(index)] = self._launch(body, offer)
            journal.got(made[intent.mark(index)])
        return [made[intent.mark(index)] for index in range(offer.nodes)]

    def _launch_body(self, offer: Offer, name: str, token: str, host: keys.KeyPair, key_name: str) -> Document:
        _, login = keys.ensure_login_key(self.context.home)
        tags = {machines.NAME: name, machines.TOKEN: token, machines.HOST_KEY: host.public}
        image = str(offer.data["image"])
        return {
            "region_name": offer.region,
            "instance_type_name": offer.data["type"],
            "ssh_key_names": [key_name],
            "name": name,
            "image": {"id" if IMAGE_ID.fullmatch(image) else "family": image},
            "user_data": cloud_init.document(
                host=host, login=login, user=machines.USER, max_bytes=MAX_USER_DATA_BYTES, who="Lambda"
            ),
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        }

    def _launch(self, body: Document, offer: Offer) -> Resource:
        doing, account = f"start a {offer.data['type']} in {offer.region}", self._account()
        answer = self._api.post("/instance-operations/launch", body, doing)
        ids = answer.get("instance_ids") if isinstance(answer, dict) else None
        if not isinstance(ids, list) or len(ids) != 1:
            raise self._api.unreadable(answer, doing)
        instance = {
            "id": ids[0],
            "status": "booting",
            "tags": body["tags"],
            "region": {"name": offer.region},
            "instance_type": {
                "name": offer.data["type"],
                "price_cents_per_hour": offer.per_hour / offer.nodes * 100,
            },
        }
        return machines.machine_resource(instance, self.context.home, account)

    def _register_login(self) -> str:
        """The name of our login's public half in the account: each launch names one key. It stays there, for all
        clusters of this home; another command may register it at the same time."""
        _, login = keys.ensure_login_key(self.context.home)
        if found := keys.find_registered(self._ssh_keys(), login):
            return found
        name = f"gpuops-{self.context.owner}-{fingerprint(login)}"
        try:
            self._api.post("/ssh-keys", {"name": name, "public_key": login}, "register an SSH key", creating=False)
        except (Rejected, Unknown):
            if found := keys.find_registered(self._ssh_keys(), login):
                return found
            raise
        return name

    def _ssh_keys(self) -> dict[str, str]:
        listed = self._list("/ssh-keys", "list SSH keys")
        return {str(key.get("name")): str(key.get("public_key") or "") for key in listed}

    # Finding and ending.

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return [one for one in self._list_marked(f"gpuops-{owner}-") if not regions or one.region in regions]

    def list_every_owner(self) -> Sequence[Resource]:
        return self._list_marked("gpuops-")

    def _list_marked(self, prefix: str) -> list[Resource]:
        key = fingerprint(self._api.key)
        listed = self._list("/instances", "list machines")
        self._seen |= {(key, str(instance["id"])) for instance in listed}
        ours = [instance for instance in listed if machines.instance_name(instance).startswith(prefix)]
        found = [machines.machine_resource(instance, self.context.home, self._account()) for instance in ours]
        return [resource for resource in found if resource.state != ResourceState.ENDED]

    def describe(self, resource: Resource) -> Resource:
        key = self._api.key
        instance = self._api.get_or_none(f"/instances/{path_segment(resource.id)}", doing := "look at a machine")
        if instance is None:
            if (fingerprint(key), resource.id) not in self._seen and has_other_key(resource, key):
                raise other_key(resource, api.VARIABLE)
            return dataclasses.replace(resource, state=ResourceState.ENDED, address="", port=0, per_hour=0.0)
        if not isinstance(instance, dict) or not instance.get("id"):
            raise self._api.unreadable(instance, doing)
        self._seen.add((fingerprint(key), resource.id))
        return machines.machine_resource(instance, self.context.home, self._account(), resource)

    def destroy(self, resources: Sequence[Resource]) -> None:
        """All in one request; where that is refused, since one is gone already (404) or cannot be ended now, none was
        ended by it, and they are ended one by one. What is on its way out is not asked for again."""
        ids = [resource.id for resource in resources if resource.data.get("status") != machines.TERMINATING]
        if len(ids) > 1:
            with suppress(Rejected):
                if self._terminate(ids) != 404:
                    return
        each(partial(self._terminate, [id]) for id in ids)

    def _terminate(self, ids: Sequence[str]) -> int:
        path = "/instance-operations/terminate"
        return self._api.delete(path, "end machines", method="POST", body={"instance_ids": list(ids)})

    def self_destruct(self, resource: Resource) -> None:
        return None

    # What else can be asked.

    def provider_time(self) -> float | None:
        return self._api.server_time()

    def payer(self, request: Request, patience_s: float) -> Payer:
        """Lambda does not tell whose account a key is of."""
        return Payer("", self._api.find_key().source)

    def _account(self) -> dict[str, str]:
        return {"key": fingerprint(self._api.key)}

    def _list(self, path: str, doing: str) -> list[Document]:
        listed = self._api.get(path, doing)
        if not isinstance(listed, list) or not all(isinstance(one, dict) and one.get("id") for one in listed):
            raise self._api.unreadable(listed, doing)
        return listed


def _unknown(named: Sequence[str], known: set[str], what: str) -> list[Problem]:
    """A Problem for each name that Lambda does not have; none where it lists nothing."""
    unknown = [name for name in named if known and name not in known]
    near = {name: did_you_mean(name, known) or f"it has {join_names(known)}" for name in unknown}
    return [Problem(f"Lambda has no {what} '{name}'", near[name]) for name in unknown]
