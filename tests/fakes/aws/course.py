"""How machines get on: up, to their end, and out of the lists."""

from __future__ import annotations

from tests.fakes.aws.records import BY_SPOT, Instance
from tests.fakes.aws.world import World


def settle(world: World) -> None:
    """Let all come to pass whose time has come. With the world's lock held."""
    now = world.now()
    for one in list(world.instances.values()):
        _get_on(world, one, now)
    still = []
    for held in world.withheld:
        until, region, vpc, group_id, group = held
        if now >= until:
            world.moto.ec2(region).groups[vpc][group_id] = group
        else:
            still.append(held)
    world.withheld[:] = still


def _get_on(world: World, one: Instance, now: float) -> None:
    if one.state == "pending" and now >= one.created + world.pending_s:
        one.state = "running"
        one.moto.nics[0].public_ip = one.public
    if one.interrupted is not None and now >= one.interrupted and one.state in ("pending", "running"):
        end(world, one, BY_SPOT)
    if one.state == "stopping" and one.ending is not None and now >= one.ending:
        one.state = "stopped"
        one.moto.nics[0].public_ip = None
    if one.state == "shutting-down" and one.ending is not None and now >= one.ending:
        _bury(one, now)
    if one.state == "terminated" and one.ended is not None:
        if one.request and now >= one.ended + world.close_s:
            one.request.close(
                "instance-terminated-no-capacity" if one.reason == BY_SPOT else "instance-terminated-by-user"
            )
        if now >= one.ended + world.told_s:
            _forget(world, one)


def end(world: World, one: Instance, reason: tuple[str, str]) -> None:
    """From here on it is shutting down."""
    if one.state in ("shutting-down", "terminated"):
        return
    one.state = "shutting-down"
    one.blame(reason)
    one.ending = world.now() + world.ending_s
    if world.bodies:
        world.bodies.stop(one)
    settle(world)


def halt(world: World, one: Instance, reason: tuple[str, str]) -> None:
    """It stops, and can be started again; its disk stays and costs."""
    if one.state in ("pending", "running"):
        one.state = "stopping"
        one.blame(reason)
        one.ending = world.now() + world.ending_s
        if world.bodies:
            world.bodies.stop(one)
        settle(world)


def _bury(one: Instance, now: float) -> None:
    reason = one.reason
    one.moto.terminate()  # its disks and network interfaces, as far as they go with it
    for nic in one.moto.nics.values():
        nic.public_ip = None
    one.blame(reason)
    one.state = "terminated"
    one.ended = now


def _forget(world: World, one: Instance) -> None:
    reservations = world.moto.ec2(one.region).reservations
    for key, reservation in list(reservations.items()):
        if one.moto in reservation.instances:
            reservation.instances.remove(one.moto)
            if not reservation.instances:
                del reservations[key]
    del world.instances[one.id]
