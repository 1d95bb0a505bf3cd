"""The parts of the fake's world that tests turn, by their own names."""

from __future__ import annotations

from typing import Any

from tests.fakes.aws.world import World


class Knob:
    """An attribute of the world, as the fake's own."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, holder: Any, owner: type) -> Any:
        return self if holder is None else getattr(holder.world, self.name)

    def __set__(self, holder: Any, value: Any) -> None:
        setattr(holder.world, self.name, value)


class Knobs:
    """See World for what each is."""

    world: World
    quota = Knob()
    quota_requests = Knob()
    grants_s = Knob()
    capacity = Knob()
    price = Knob()
    on_demand = Knob()
    scores = Knob()
    not_offered = Knob()
    opted_in = Knob()
    only_regions = Knob()
    instance_profiles = Knob()
    placement_groups = Knob()
    reservations = Knob()
    spot_role = Knob()
    plan = Knob()
    default_vpc = Knob()
    pictures = Knob()
    console = Knob()
    mishaps = Knob()
    lag_s = Knob()
    pending_s = Knob()
    ending_s = Knob()
    close_s = Knob()
    dry_s = Knob()
    counted_s = Knob()
    told_s = Knob()
    account = Knob()
