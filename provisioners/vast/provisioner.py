"""Vast.ai as a provisioner: one machine at a time, which is a container on somebody's computer."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.core.models import Offer, Request, Resource
from provisioners.kit.account import AccountFacts
from provisioners.kit.documents import entries, number, objects
from provisioners.kit.gpu_names import match_gpus
from provisioners.kit.json_api import next_by, path_segment
from provisioners.kit.rented import NewMachine, RentedProvisioner, all_but
from provisioners.kit.ssh_machine import Machine
from provisioners.vast import offers
from provisioners.vast.machines import parse_machine
from provisioners.vast.service import BOOT, SERVICE

ONE_MACHINE = (
    "machines of Vast.ai reach each other only inside one physical cluster, by an overlay network that gpuops does not "
    "make; one machine with several GPUs (--gpus 4) can be virtual nodes"
)
NEXT_PAGE = next_by(["next_token"], "after_token")
PAGE = 25
"""The most that one page of instances has."""


class VastProvisioner(RentedProvisioner):
    name = "vast"
    service = SERVICE
    capabilities = all_but(multinode=ONE_MACHINE)
    wishes = offers.Wishes
    examples = (
        "--gpus 1 --dry-run",
        "--gpus 2 --gpu-type 4090 --max-price 1 --max-hours 3",
        "--gpus 4 --gpu-mem 40 --datacenter --region SE,NO",
        "--spot --bid 0.25 --max-cost 2",
    )
    gone_s = 120.0
    boot = BOOT
    without_private_hosts = "--datacenter leaves those out"

    def offers(self, request: Request) -> Sequence[Offer]:
        wishes, wanted = offers.Wishes.parse(request), []
        if request.gpu_type:
            names = entries(self.api.get("/api/v0/gpu_names/unique/", "list GPUs") or {}, "gpu_names")
            wanted = match_gpus([str(name) for name in names], request.gpu_type, "Vast.ai", name=str)
        body = offers.search_body(wishes, wanted)
        found = self.api.post("/api/v0/bundles/", body, "search offers", creating=False) or {}
        return self.warn_of_hosts(offers.offers(objects(found, "offers"), wishes))

    # Making.

    def launch(self, offer: Offer, new: NewMachine) -> str:
        """Rent an ask. A bid that is too low may be refused and make a machine all the same, stopped, which bills its
        disk (dstack 511c318c8, VastAICreateInstanceError)."""
        body = {
            "client_id": "me",
            "image": offer.data["image"],
            "disk": offer.data["disk"],
            "label": new.name,
            "runtype": "ssh_direc ssh_proxy",  # so spelt by Vast.ai's own client
            "env": new.boot_variables(),
            "onstart": BOOT.script(self.api.address),
            "cancel_unavail": True,
            "target_state": "running",
            **({} if offer.data["bid"] is None else {"price": offer.data["bid"]}),  # without: on demand
        }
        path = f"/api/v0/asks/{path_segment(offer.id)}/"
        return self.api.create(path, body, "rent a machine", "new_contract", "PUT", may_make_and_refuse=True)

    # Finding and ending.

    def list_machines(self) -> Sequence[Machine]:
        listed = self.api.list_objects("/api/v1/instances/", "list instances", "instances", NEXT_PAGE, limit=PAGE)
        return [parse_machine(one) for one in listed]

    def find_machine(self, resource: Resource) -> Machine | None:
        path = f"/api/v0/instances/{path_segment(resource.id)}/?owner=me"
        found = self.api.find_object(path, "look at an instance", "instances")
        return parse_machine(found) if found else None

    def end_machine(self, resource: Resource) -> int:
        return self.api.delete(f"/api/v0/instances/{path_segment(resource.id)}/", "destroy an instance", body={})

    # The account.

    def ask_account(self) -> AccountFacts:
        """What was paid in before is the `credit` (a field of Vast.ai's own client, not in its description); what such
        an account has spent of it may stand in its `balance` for a while, below 0."""
        user = self.api.find_object("/api/v0/users/current/", "look at the account") or {}
        told = [number(user[name]) for name in ("balance", "credit") if name in user]
        return AccountFacts(str(user.get("id") or ""), str(user.get("email") or ""), sum(told) if told else None)
