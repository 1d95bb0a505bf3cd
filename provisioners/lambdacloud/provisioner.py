"""Lambda as a provisioner: on-demand machines, each of a launch of its own, 12 s from one another.

No machine can end itself: nothing in it stops its bill, and a key to the whole account stays on the user's computer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from gpuops.core.errors import Rejected
from gpuops.core.models import Offer, Problem, Request, Resource
from gpuops.core.names import did_you_mean
from provisioners.kit import cloud_init
from provisioners.kit.gpu_names import join_names, split_wish
from provisioners.kit.instance_types import find_offers, type_option
from provisioners.kit.json_api import path_segment
from provisioners.kit.keys import ensure_registered
from provisioners.kit.rented import NewMachine, RentedProvisioner, all_but
from provisioners.kit.service import fingerprint
from provisioners.kit.ssh_machine import Machine
from provisioners.lambdacloud import catalog, machines
from provisioners.lambdacloud.service import LAUNCHES_APART_S, SERVICE

IMAGE = "lambda-stack-24-04"
"""A family: without one, Lambda takes another Ubuntu in each region."""
IMAGE_ID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")
MAX_USER_DATA_BYTES = 1_000_000


class LambdaProvisioner(RentedProvisioner):
    name = "lambda"
    service = SERVICE
    capabilities = all_but(
        spot="Lambda has one price for a machine",
        self_destruct="Lambda bills one that is shut down as well, and only the account's own key ends it",
    )
    options = (type_option("gpu_8x_h100_sxm5, cpu_4x_general", "Lambda"),)
    examples = (
        "--gpus 1 --dry-run",
        "--gpus 1 --gpu-type a10 --max-hours 2",
        "--gpus 8 --gpu-type h100 --nodes 2 --region us-west-3 --max-cost 100",
        "--instance-type gpu_1x_gh200 --wait 2h",
    )
    launches_apart_s = LAUNCHES_APART_S

    def problems(self, request: Request) -> Sequence[Problem]:
        """What Lambda has no question for, a quota and the money, is told when a machine is launched."""
        images = self.api.list_objects("/images", "list images")
        regions = {str((image.get("region") or {}).get("name") or "") for image in images}
        names = {str(image.get(field)) for image in images for field in ("family", "id")}
        return [
            *_unknown(split_wish(request.region), regions, "region"),
            *_unknown([request.image or IMAGE], names, "image family"),
        ]

    def offers(self, request: Request) -> Sequence[Offer]:
        answer = self.api.get("/instance-types", doing := "list instance types")
        if not isinstance(answer, dict):
            raise self.api.unreadable(answer, doing)
        return find_offers(
            catalog.parse_types(answer),
            request,
            "Lambda",
            notes=[catalog.ENDS],
            region_notes=catalog.REGION_NOTES,
            image=request.image or IMAGE,
        )

    # Making.

    def register_login(self, public: str) -> str:
        def listed() -> dict[str, str]:
            keys = self.api.list_objects("/ssh-keys", "list SSH keys")
            return {str(key.get("name")): str(key.get("public_key") or "") for key in keys}

        def register(name: str) -> None:
            self.api.post("/ssh-keys", {"name": name, "public_key": public}, "register an SSH key", creating=False)

        return ensure_registered(public, f"gpuops-{self.context.owner}-{fingerprint(public)}", listed, register)

    def launch(self, offer: Offer, new: NewMachine) -> str:
        tags = {machines.NAME: new.name, machines.TOKEN: new.token, machines.HOST_KEY: new.host.public}
        image, doing = str(offer.data["image"]), f"start a {offer.data['type']} in {offer.region}"
        body = {
            "region_name": offer.region,
            "instance_type_name": offer.data["type"],
            "ssh_key_names": [new.login_name],
            "name": new.name,
            "image": {"id" if IMAGE_ID.fullmatch(image) else "family": image},
            "user_data": cloud_init.document(
                host=new.host, login=new.login, user=machines.USER, max_bytes=MAX_USER_DATA_BYTES, who="Lambda"
            ),
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        }
        answer = self.api.post("/instance-operations/launch", body, doing)
        ids = answer.get("instance_ids") if isinstance(answer, dict) else None
        if not isinstance(ids, list) or len(ids) != 1 or not ids[0] or not isinstance(ids[0], str):
            raise self.api.unreadable(answer, doing)
        return str(ids[0])

    # Finding and ending.

    def list_machines(self) -> Sequence[Machine]:
        return [machines.parse_machine(one) for one in self.api.list_objects("/instances", "list machines")]

    def find_machine(self, resource: Resource) -> Machine | None:
        found = self.api.find_object(f"/instances/{path_segment(resource.id)}", "look at a machine")
        return machines.parse_machine(found) if found else None

    def destroy(self, resources: Sequence[Resource]) -> None:
        """All in one request; where that is refused, since one is gone already (404) or cannot be ended now, none was
        ended by it, and they are ended one by one. What is on its way out is not asked for again."""
        billing = [resource for resource in resources if resource.data.get("status") != machines.TERMINATING]
        if len(billing) > 1:
            with suppress(Rejected):
                if self._terminate(billing) != 404:
                    return
        super().destroy(billing)

    def end_machine(self, resource: Resource) -> int:
        return self._terminate([resource])

    def _terminate(self, resources: Sequence[Resource]) -> int:
        body = {"instance_ids": [resource.id for resource in resources]}
        return self.api.delete("/instance-operations/terminate", "end machines", method="POST", body=body)


def _unknown(named: Sequence[str], known: set[str], what: str) -> list[Problem]:
    """A Problem for each name that Lambda does not have; none where it lists nothing."""
    unknown = [name for name in named if known and name not in known]
    near = {name: did_you_mean(name, known) or f"it has {join_names(known)}" for name in unknown}
    return [Problem(f"Lambda has no {what} '{name}'", near[name]) for name in unknown]
