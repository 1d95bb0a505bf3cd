"""What can be said of the parts without a world."""

from __future__ import annotations

import argparse

import pytest
import torch
import torch.distributed as dist
from ddp.loader import choose_batch, choose_workers
from ddp.sampler import Part, Sampler
from ddp.world import join
from hypothesis import given
from hypothesis import strategies as st

numbers = st.integers


@given(
    samples=numbers(1, 60), batch=numbers(1, 9), accumulate=numbers(1, 3), world=numbers(1, 6),
    steps=numbers(0, 5), later=numbers(1, 6), again=numbers(1, 9),
)  # fmt: skip
def test_every_sample_is_seen_once_however_the_world_changes(
    samples: int, batch: int, accumulate: int, world: int, steps: int, later: int, again: int
) -> None:
    """Some steps in one world, the rest of the epoch in another, with other batches."""
    first = [Sampler(samples, batch, accumulate, rank, world, seed=3).parts(epoch=2) for rank in range(world)]
    steps = min(steps, len(closed(first[0])))
    seen, position = [], 0
    for parts in first:
        for part in [part for group in closed(parts)[:steps] for part in group]:
            seen += part.indices[: part.mine].tolist()
    for group in closed(first[0])[:steps]:
        position += group[-1].everyones
    if position < samples:
        rest = [Sampler(samples, again, 1, rank, later, seed=3).parts(2, position) for rank in range(later)]
        for parts in rest:
            seen += [index for part in parts for index in part.indices[: part.mine].tolist()]
        assert len({tuple(len(part.indices) for part in parts) for parts in rest}) == 1, (
            "ranks that wait for each other"
        )
    assert sorted(seen) == list(range(samples))


@given(samples=numbers(1, 60), batch=numbers(1, 9), accumulate=numbers(1, 3), world=numbers(1, 6))
def test_all_ranks_agree_on_how_many_samples_a_step_has(samples: int, batch: int, accumulate: int, world: int) -> None:
    samplers = [Sampler(samples, batch, accumulate, rank, world, seed=3) for rank in range(world)]
    steps = [closed(sampler.parts(0)) for sampler in samplers]
    for groups in zip(*steps, strict=True):
        said = {part.everyones for group in groups for part in group}
        assert said == {sum(part.mine for group in groups for part in group)}
    assert len(steps[0]) == len(samplers[0])


def closed(parts: list[Part]) -> list[list[Part]]:
    """The parts of each step."""
    groups: list[list[Part]] = [[]]
    for part in parts:
        groups[-1].append(part)
        if part.closes:
            groups.append([])
    assert groups.pop() == []
    return groups


def test_another_order_in_every_epoch_and_for_every_seed() -> None:
    sampler = Sampler(100, 10, 1, 0, 1, seed=1)
    assert not torch.equal(sampler.order(0), sampler.order(1))
    assert torch.equal(sampler.order(1), Sampler(100, 7, 2, 3, 4, seed=1).order(1))
    assert not torch.equal(sampler.order(0), Sampler(100, 10, 1, 0, 1, seed=9).order(0))


@pytest.mark.parametrize(
    ("cores", "ranks", "device", "wanted", "chosen", "why"),
    [
        (16, 4, "cuda", None, 3, "3 workers per rank (16 cores, 4 ranks here; one core is left to each rank itself)"),
        (64, 1, "cuda", None, 8, "8 workers per rank (64 cores, 1 rank here; one core is left to each rank itself)"),
        (4, 8, "cuda", None, 1, "1 worker per rank (4 cores, 8 ranks here; one core is left to each rank itself)"),
        (2, 2, "cpu", None, 0, "0 workers per rank (2 cores, 2 ranks here, which compute on them)"),
        (8, 2, "cpu", None, 1, "1 worker per rank (8 cores, 2 ranks here, which compute on them)"),
        (2, 2, "cpu", 5, 5, "5 workers per rank, as asked"),
    ],
)
def test_workers_are_chosen_from_cores_and_ranks(cores, ranks, device, wanted, chosen, why) -> None:
    assert choose_workers(cores, ranks, device, wanted) == (chosen, why)


@pytest.mark.parametrize(
    ("samples", "world", "asked", "chosen", "problem"),
    [
        (2048, 16, None, 32, None),
        (2048, 100, None, 21, None),
        (2048, 16, 128, 128, None),
        (2048, 16, 129, 128, "--batch_size 129 is more than there is: 16 ranks share 2048 samples; use 128 or less"),
        (0, 1, None, 1, "there is not one sample to learn from"),
    ],
)
def test_a_batch_is_at_most_a_ranks_share(samples, world, asked, chosen, problem) -> None:
    options = argparse.Namespace(batch_size=asked, default_batch_size=32)
    assert choose_batch(samples, world, options) == (chosen, problem)


@pytest.mark.parametrize(("nccl", "groups"), [(True, "cpu:gloo,cuda:nccl"), (False, "cpu:gloo,cuda:gloo")])
def test_a_gpu_is_used_where_torch_has_no_nccl_too(monkeypatch: pytest.MonkeyPatch, nccl: bool, groups: str) -> None:
    joined: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    monkeypatch.setattr(dist, "init_process_group", lambda backends, **_: joined.append(backends))
    assert (join("auto"), joined) == ((torch.device("cuda", 0), "nccl" if nccl else "gloo"), [groups])
