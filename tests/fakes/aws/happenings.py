"""What happens to machines without anybody asking the API for it."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.fakes.aws import course
from tests.fakes.aws.records import BY_GUEST, BY_USER, Instance
from tests.fakes.aws.world import World


class Happenings:
    world: World

    def interrupt(self, one: str, in_s: float = 120.0) -> float:
        """The notice that AWS takes a spot machine back; when, in UTC seconds."""
        with self.world.lock:
            machine = self.world.instances[one]
            at = float(int(self.world.now() + in_s)) if in_s >= 1 else self.world.now() + in_s
            machine.interrupted = at
            self._notice(machine, "instance-action", {"action": "terminate", "time": _utc(at)})
            course.settle(self.world)
        return at

    def rebalance(self, one: str) -> None:
        with self.world.lock:
            self._notice(self.world.instances[one], "rebalance", {"noticeTime": _utc(self.world.now())})

    def _notice(self, machine: Instance, kind: str, document: dict[str, str]) -> None:
        machine.notices[kind] = document
        if self.world.bodies:
            self.world.bodies.notice(machine, kind, document)

    def reclaim(self, one: str) -> None:
        """AWS takes a spot machine back without a notice."""
        with self.world.lock:
            self.world.instances[one].interrupted = self.world.now()
            course.settle(self.world)

    def power_off(self, one: str) -> None:
        """What a power-off from inside does."""
        if self.world.bodies:
            self.world.bodies.machines.power_off(one)
        else:
            self.powered_off(one)

    def reboot(self, one: str) -> None:
        """From inside; only of a machine of a lab there is anything to see."""
        if self.world.bodies:
            self.world.bodies.machines.reboot(one)

    def powered_off(self, one: str) -> None:
        """It ends, or stops where it was launched so, or where its spot request was cancelled under it."""
        with self.world.lock:
            machine = self.world.instances.get(one)
            if machine is None:
                return
            detached = machine.request is not None and machine.request.state == "cancelled"
            if machine.shutdown == "terminate" and not detached:
                course.end(self.world, machine, BY_GUEST)
            else:
                course.halt(self.world, machine, BY_GUEST)

    def terminate(self, one: str) -> None:
        """As its owner can in the console."""
        with self.world.lock:
            course.end(self.world, self.world.instances[one], BY_USER)


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
