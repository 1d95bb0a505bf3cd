"""Heron, a cloud that was made up: virtual machines by a REST API, for whoever writes a provider of such a one.

GET    /v1/types             {"types": [{"name", "gpu", "gpus", "gpu_gb", "dollars_per_hour", "free_in": [region]}]}
GET    /v1/servers?after=ID  {"servers": [server], "more": true}, by their ids
POST   /v1/servers           {"name", "type", "region", "labels", "user_data"} -> server
GET    /v1/servers/ID        server: {"id", "name", "type", "region", "labels", "state", "address", "private_address",
                             "dollars_per_hour"}, in the state starting, running, ending or failed
DELETE /v1/servers/ID        ends it; it stays in the list until it is gone, and costs nothing then
what fails                   {"error": {"code", "message"}}
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.core.errors import NoCapacity, QuotaExceeded
from gpuops.core.models import Offer, Request, Resource, ResourceState
from provisioners.kit import cloud_init
from provisioners.kit.documents import Document, inner, objects, price
from provisioners.kit.error_table import STANDARD, Row
from provisioners.kit.instance_types import InstanceType, find_offers, type_option
from provisioners.kit.json_api import path_segment
from provisioners.kit.rented import NewMachine, RentedProvisioner, all_but
from provisioners.kit.service import Service, StoredKey
from provisioners.kit.ssh_machine import Login, Machine

SERVICE = Service(
    name="Heron",
    address="https://api.heron.example/v1",
    address_variable="HERON_URL",
    key_variable="HERON_KEY",
    keys_page="https://heron.example/keys",
    stored_keys=[StoredKey("~/.config/heron/key")],
    errors=[
        Row(["out_of_stock"], NoCapacity, "Heron has none free: it cannot {doing} now", "try again later (--wait 2h)"),
        Row(["limit_reached"], QuotaExceeded, "the Heron account may not have more machines{why}", "end one of them"),
        *STANDARD,
    ],
)
USER = "ubuntu"
MAX_USER_DATA_BYTES = 64_000
STATES = {"starting": ResourceState.STARTING, "running": ResourceState.RUNNING}


class HeronProvisioner(RentedProvisioner):
    name = "heron"
    service = SERVICE
    capabilities = all_but(
        spot="Heron has one price for a machine",
        self_destruct="a machine that is shut down costs as much, and only the account's own key ends it",
    )
    options = (type_option("h100.8, a10.1", "Heron"),)
    gone_s = 300.0

    def offers(self, request: Request) -> Sequence[Offer]:
        listed = objects(self.api.get("/types", "list types"), "types")
        return find_offers([parse_type(one) for one in listed], request, "Heron")

    def launch(self, offer: Offer, new: NewMachine) -> str:
        user_data = cloud_init.document(
            host=new.host, login=new.login, user=USER, max_bytes=MAX_USER_DATA_BYTES, who="Heron"
        )
        body = {
            "name": new.name,
            "type": offer.data["type"],
            "region": offer.region,
            "labels": {"token": new.token, "host-key": new.host.public},
            "user_data": user_data,
        }
        return self.api.create("/servers", body, f"start a {offer.data['type']}")

    def list_machines(self) -> Sequence[Machine]:
        return [parse_machine(one) for one in self.api.list_objects("/servers", "list servers", "servers", next_page)]

    def find_machine(self, resource: Resource) -> Machine | None:
        found = self.api.find_object(f"/servers/{path_segment(resource.id)}", "look at a server")
        return parse_machine(found) if found else None

    def end_machine(self, resource: Resource) -> int:
        return self.api.delete(f"/servers/{path_segment(resource.id)}", "end a server")


def next_page(page: Document) -> Document:
    return {"after": page["servers"][-1]["id"]} if page.get("more") else {}


def parse_type(one: Document) -> InstanceType:
    return InstanceType(
        type=str(one.get("name")),
        gpus=int(price(one.get("gpus"))),
        gpu=str(one.get("gpu") or ""),
        memory=int(price(one.get("gpu_gb"))),
        per_hour=price(one.get("dollars_per_hour")),
        regions=tuple(map(str, one.get("free_in") or ())),
    )


def parse_machine(server: Document) -> Machine:
    """A server of an answer that has an `id`. Its state is RUNNING once it can be logged in to, or soon will be."""
    labels, state, address = inner(server, "labels"), str(server.get("state")), str(server.get("address") or "")
    return Machine(
        id=str(server["id"]),
        name=str(server.get("name") or ""),
        region=str(server.get("region") or ""),
        state=STATES.get(state, ResourceState.UNKNOWN),
        login=Login(USER, address, 22, str(labels.get("host-key") or "")),
        token=str(labels.get("token") or ""),
        per_hour=price(server.get("dollars_per_hour")),
        data={"phase": f"Heron calls it {state}", "hopeless": "" if state in STATES else f"Heron calls it {state}"},
    )
