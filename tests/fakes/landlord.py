"""A third party's provider whose machines are hosts that stand already: rented by a line in a file, reached by SSH.

    <LANDLORD>/houses.json   [{"address", "port", "host_key", "identity"}, …], what can be let
    <LANDLORD>/let/<n>.json  one document each: the house n is let, and costs
    <LANDLORD>/ended         a line for each end that a node asked for by itself

Nothing of gpuops is on a house when it is let: the core has to bring everything.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuops.core.errors import NoCapacity
from gpuops.core.models import Intent, Journal, Offer, Option, Price, Problem, Request, Resource
from gpuops.core.provider import CONTRACT, Context

PER_HOUR = 0.5


def settle(site: Path) -> list[str]:
    """Write the metadata of its wheel; what `sys.path` needs for it to be found."""
    folder = site / "gpuops_landlord-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuops-landlord\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[gpuops.provisioners]\nlandlord = landlord:Landlord\n")
    return [str(site), str(Path(__file__).parent)]


class Landlord:
    contract = CONTRACT
    name = "landlord"
    capabilities: Mapping[str, bool | str] = {
        "multinode": True,
        "spot": "a house is let or not",
        "self_destruct": True,
        "host_keys": True,
        "rented": True,
        "shares_disk": "a house has its own disk",
    }
    options: Sequence[Option] = ()
    credentials: Sequence[str] = ()
    surroundings: Sequence[str] = ()
    settle_s = 0.0
    gone_s = 60.0

    def __init__(self, context: Context) -> None:
        self.home = context.home
        self.folder = Path(context.env["LANDLORD"])
        (self.folder / "let").mkdir(exist_ok=True)

    def preflight(self, request: Request) -> Sequence[Problem]:  # noqa: ARG002
        return []

    def offers(self, request: Request) -> Sequence[Offer]:
        price = Price(f"{request.nodes} houses", PER_HOUR * request.nodes)
        return [Offer(self.name, "house", f"{request.nodes} houses", request.nodes, 0, "street", (price,))]

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        made = []
        for index in range(offer.nodes):
            token = f"{intent.token}-{index}"
            journal.will("machine", intent.mark(index), token, "street")
            made.append(self._let(intent.mark(index), token))
            journal.got(made[-1])
        return made

    def _let(self, mark: str, token: str) -> Resource:
        houses = json.loads((self.folder / "houses.json").read_text())
        vacant = [number for number in range(len(houses)) if not self._deed(number).exists()]
        if not vacant:
            raise NoCapacity("every house is let", "wait until one is vacant")
        house = houses[vacant[0]]
        target = {
            "host": house["address"], "port": house["port"], "user": "root", "identities": [house["identity"]],
            "identities_only": True, "host_keys": [house["host_key"]],
        }  # fmt: skip
        told = {"connection": "ssh", "target": target, "ssh_folder": str(self.home / "ssh"), "token": token}
        given = {key: house[key] for key in ("throwaway_key", "boot_watch") if key in house}
        machine = Resource("machine", str(vacant[0]), "street", mark, True, "", "running", house["address"],
                           house["port"], "", PER_HOUR, {**told, "revives": True, **given})  # fmt: skip
        draft = self.folder / f"draft-{token}"  # others read the deeds meanwhile
        draft.write_text(json.dumps(dataclasses.asdict(machine)))
        draft.replace(self._deed(vacant[0]))
        return machine

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:  # noqa: ARG002
        deeds = map(self._read, sorted((self.folder / "let").glob("*.json")))
        return [machine for machine in deeds if machine is not None]

    def describe(self, resource: Resource) -> Resource:
        return self._read(self._deed(resource.id)) or dataclasses.replace(resource, state="ended")

    def destroy(self, resources: Sequence[Resource]) -> None:
        for resource in resources:
            self._deed(resource.id).unlink(missing_ok=True)

    def self_destruct(self, resource: Resource) -> Sequence[str]:
        return ["sh", "-c", 'echo "$1" >>/srv/ended', "sh", resource.id]

    def _read(self, deed: Path) -> Resource | None:
        try:
            return Resource(**json.loads(deed.read_text()))
        except FileNotFoundError:
            return None

    def _deed(self, number: int | str) -> Path:
        return self.folder / "let" / f"{number}.json"
