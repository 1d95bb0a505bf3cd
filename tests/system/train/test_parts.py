"""What can be said of the parts without a world."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from ddp.options import arguments
from hypothesis import given
from hypothesis import strategies as st
from late import late_import, torch

loader, sampling, worlds = map(late_import, ("ddp.loader", "ddp.sampler", "ddp.world"))

numbers = st.integers


@given(
    samples=numbers(1, 60), batch=numbers(1, 9), world=numbers(1, 6), steps=numbers(0, 5), later=numbers(1, 6),
    again=numbers(1, 9),
)  # fmt: skip
def test_every_sample_is_seen_once_however_the_world_changes(
    samples: int, batch: int, world: int, steps: int, later: int, again: int
) -> None:
    """Some steps in one world, the rest of the epoch in another, with other batches."""
    first = [sampling.Sampler(samples, batch, rank, world, seed=3).parts(epoch=2)[:steps] for rank in range(world)]
    seen = [index for parts in first for part in parts for index in part.indices[: part.mine].tolist()]
    position = sum(part.all_ranks for part in first[0])
    if position < samples:
        rest = [sampling.Sampler(samples, again, rank, later, seed=3).parts(2, position) for rank in range(later)]
        for parts in rest:
            seen += [index for part in parts for index in part.indices[: part.mine].tolist()]
        assert len({tuple(len(part.indices) for part in parts) for parts in rest}) == 1, (
            "ranks that wait for each other"
        )
    assert sorted(seen) == list(range(samples))


@given(samples=numbers(1, 60), batch=numbers(1, 9), world=numbers(1, 6))
def test_all_ranks_agree_on_how_many_samples_a_step_has(samples: int, batch: int, world: int) -> None:
    samplers = [sampling.Sampler(samples, batch, rank, world, seed=3) for rank in range(world)]
    steps = [sampler.parts(0) for sampler in samplers]
    for parts in zip(*steps, strict=True):
        assert {part.all_ranks for part in parts} == {sum(part.mine for part in parts)}
    assert len(steps[0]) == len(samplers[0])


def test_another_order_in_every_epoch_and_for_every_seed() -> None:
    sampler = sampling.Sampler(100, 10, 0, 1, seed=1)
    assert not torch.equal(sampler.order(0), sampler.order(1))
    assert torch.equal(sampler.order(1), sampling.Sampler(100, 7, 3, 4, seed=1).order(1))
    assert not torch.equal(sampler.order(0), sampling.Sampler(100, 10, 0, 1, seed=9).order(0))


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
    assert loader.choose_batch(samples, world, options) == (chosen, problem)


@pytest.fixture
def join_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[torch.device, str, dict[str, Any]]]:
    """`join` on a machine with so many GPUs, of which there are none here: its device, the backends that torch is
    asked for, and all else that it is told."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)

    def join_a_world(gpus: int, nccl: bool = True, **wanted: Any) -> tuple[torch.device, str, dict[str, Any]]:
        told: dict[str, Any] = {}
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
        monkeypatch.setattr(
            torch.distributed, "init_process_group", lambda backends, **more: told.update(more, backends=backends)
        )
        device, _ = worlds.join(**{"wanted": "auto", **wanted})
        return device, told.pop("backends"), told

    return join_a_world


@pytest.mark.parametrize(
    ("gpus", "wanted", "nccl", "device", "groups"),
    [
        (2, "auto", True, "cuda:1", "cpu:gloo,cuda:nccl"),
        (2, "auto", False, "cuda:1", "cpu:gloo,cuda:gloo"),  # as on Windows
        (1, "auto", True, "cpu", "gloo"),
        (1, "cuda", True, "cuda:0", "cpu:gloo,cuda:nccl"),  # each process sees one of its own
        (0, "cuda", True, "cpu", "gloo"),
        (2, "cpu", True, "cpu", "gloo"),
    ],
)
def test_each_rank_takes_a_gpu_where_there_are_that_many(join_with, gpus, wanted, nccl, device, groups) -> None:
    taken, backends, _ = join_with(gpus, nccl, wanted=wanted)
    assert (str(taken), backends) == (device, groups)


def test_a_rank_that_is_stuck_is_given_up_after_what_nccl_gives_by_itself(join_with) -> None:
    assert join_with(2)[2] == {"timeout": torch.distributed.constants.default_pg_nccl_timeout or timedelta(minutes=10)}


def test_kernels_are_the_fastest_or_those_that_repeat_themselves(join_with, monkeypatch: pytest.MonkeyPatch) -> None:
    join_with(2)
    assert torch.get_float32_matmul_precision() == "high", "as convolutions have it: a benchmark compares both"
    torch.set_float32_matmul_precision("highest")
    assert torch.backends.cudnn.benchmark
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    join_with(2, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    assert not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize(
    ("words", "epochs"),
    [
        ("", (9, 8)),
        ("50", (50, 8)),
        ("50 10", (50, 10)),
        ("--total_epochs 50 --save_every 10 --batch_size 32", (50, 10)),
        ("--batch_size 32 --save-every 10 50", (50, 10)),
    ],
)
def test_epochs_are_taken_in_both_of_the_tutorials_forms(words: str, epochs: tuple[int, int]) -> None:
    options = arguments("", 9, 8, 7, 6).parse_args(words.split())
    assert (options.total_epochs, options.save_every, options.batch_size) == (*epochs, 32 if "size" in words else None)


def test_help_gives_no_advice_that_no_flag_can_follow() -> None:
    assert "raise the learning rate or" not in " ".join(arguments("", 9, 8, 7, 6).format_help().split())
