"""The shape of what a node says of its use: an item of verb `sample`, and a line of a run's `usage.jsonl`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gpuops.transport.schema_types import (
    Amount,
    Count,
    FiniteNumber,
    Name,
    SmallInteger,
    Timestamp,
    prepare_shapes,
)

Rates = tuple[Amount | None, Amount | None]
"""Bytes per second, in and out."""


class GpuUse(Struct, frozen=True):
    """What nvidia-smi says of a GPU; None where it does not know."""

    index: SmallInteger
    use: Amount | None = None
    """In percent of the time."""
    memory_mb: Amount | None = None
    memory_total_mb: Amount | None = None
    """In MiB, as the memory in use."""
    temperature: FiniteNumber | None = None
    """In degrees Celsius."""
    power_w: Amount | None = None


class UsageLine(Struct, frozen=True):
    """A line of `usage.jsonl`: the machine, by the node's clock."""

    at: Timestamp
    cores: Annotated[int, Meta(ge=1, le=1 << 20)]
    """How many the node may use."""
    cpu: Amount | None = None
    """How many of them are busy."""
    memory: tuple[Count, Count] | None = None
    """Bytes in use, and bytes there are."""
    net: Rates | None = None
    disk: Rates | None = None
    gpus: Annotated[list[GpuUse], Meta(max_length=4096)] | None = None
    """None while nvidia-smi has not answered yet; empty where there is none."""


class RankUse(Struct, frozen=True):
    """What a living rank uses, with its children, and what it tells of itself."""

    rank: SmallInteger
    pid: Count
    cpu: Amount | None = None
    """How many cores it keeps busy."""
    memory: Count | None = None
    step: FiniteNumber | None = None
    rate: Amount | None = None
    """Steps per second."""
    data_wait: Amount | None = None
    """Which part of the time it waits for its data."""
    epoch: FiniteNumber | None = None


class RunUse(Struct, frozen=True):
    """The run that is on."""

    name: Name
    ranks: Annotated[list[RankUse], Meta(max_length=100_000)]


class NodeSample(UsageLine, frozen=True):
    """An item of verb `sample`."""

    run: RunUse | None = None


prepare_shapes([*globals().values()])
