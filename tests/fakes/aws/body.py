"""Instances that are machines: what the API tells the lab, and what the lab tells the API."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tests.fakes.aws.records import Instance
from tests.fakes.aws.world import World

if TYPE_CHECKING:
    from tests.system.lab.hosts import Lab


class Bodies:
    """`ended(id)` is called when a machine has powered itself off."""

    def __init__(self, lab: Lab, world: World, ended: Callable[[str], None]) -> None:
        from tests.fakes.aws.machines import Machines

        self.lab = lab
        self.machines: Any = Machines(lab, ended)
        self._world = world
        self._threads: list[threading.Thread] = []
        self.problems: list[str] = []

    def listen(self) -> socket.socket:
        made: socket.socket = self.machines.listen()
        return made

    def place(self, one: Instance) -> None:
        """It gets the address of its machine, inside and outside."""
        address = self.machines.reserve(one.id)
        nic = one.moto.nics[0]
        nic.private_ip_address = address
        nic.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
        nic.public_ip = self.machines.public(one.id) if nic.public_ip else None

    def begin(self, some: Iterable[Instance]) -> None:
        some = list(some)
        for region, group in {(one.region, group) for one in some for group in one.groups}:
            self.admit(region, group)
        for one in some:
            thread = threading.Thread(target=self._start, args=(one, self._order(one)), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _order(self, one: Instance) -> Any:
        from tests.fakes.aws.machines import Order

        picture = next(it for it in self._world.pictures if it.id(one.region) == one.moto.image_id)
        return Order(
            id=one.id,
            region=one.region,
            zone=one.zone,
            type=one.type,
            market=one.market,
            launch_index=one.launch_index,
            user_data=one.user_data,
            torch="PyTorch" in picture.name or "torch" in picture.name,
            mishap=self._world.mishaps.get(one.launch_index, ""),
            user="ec2-user" if "Amazon Linux" in picture.name else "ubuntu",
            account=self._world.account,
            ami=picture.id(one.region),
        )

    def _start(self, one: Instance, order: Any) -> None:
        try:
            self.machines.start(order)
        except Exception as error:
            self.problems.append(f"{one.id} did not start: {error!r}")

    def stop(self, one: Instance) -> None:
        """In a thread: it can take a moment, and is idempotent."""
        thread = threading.Thread(target=self.machines.stop, args=(one.id,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def notice(self, one: Instance, kind: str, document: dict[str, str] | None) -> None:
        self.machines.notice(one.id, kind, document)

    def console(self, one: Instance) -> str:
        return str(self.machines.console(one.id))

    def admit(self, region: str, group: str) -> None:
        """The rules of a group have changed, or its members."""
        for one in self._world.living():
            if one.region == region and group in one.groups:
                self._guard(one)

    def _guard(self, one: Instance) -> None:
        groups = [group for nic in one.moto.nics.values() for group in nic.group_set]
        cidrs, members = set(), set()
        for group in groups:
            for rule in group.ingress_rules:
                source = (rule.source_group or {}).get("GroupId")
                if source:
                    members |= {it.private_address for it in self._world.living() if source in it.groups}
                cidr = (rule.ip_range or {}).get("CidrIp")
                if cidr and (rule.ip_protocol == "-1" or (rule.from_port or 0) <= 22 <= (rule.to_port or 65535)):
                    cidrs.add(cidr)
        self.machines.firewall(one.id, sorted(cidrs), sorted(members - {one.private_address}))

    def close(self) -> None:
        for thread in self._threads:
            thread.join(300)
        self.machines.close()
        self.problems += self.machines.problems
