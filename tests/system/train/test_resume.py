"""Going on after a kill: the same weights, bit for bit, as if nothing had happened."""

from __future__ import annotations

import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from late import torch

WEIGHTS = re.compile(r"weights ([0-9a-f]{64}) rate .*")
FORWARDS = {1: 3 * 26, 2: 3 * 13, 4: 3 * 7}
"""Of a rank in three epochs of 203 samples in batches of 8, by world size."""


def weights(ranks) -> str:
    return WEIGHTS.fullmatch(ranks.out()[-1])[1]


def folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def untouched() -> dict[tuple[object, ...], str]:
    """Weights of uninterrupted runs, by what they were."""
    return {}


@pytest.fixture
def killed_and_resumed(world, untouched, tmp_path: Path) -> Callable[..., None]:
    """Run three epochs, killed at a forward of a rank; go on; compare with a run that nobody killed."""

    def run(ranks: int, at: tuple[int, int], *arguments: str, move: Callable[[], None] = lambda: None, **where) -> None:
        arguments = ("--save_steps", "3", *arguments)
        key = (ranks, *arguments)
        if key not in untouched:
            whole = world("wobbly.py", *arguments, ranks=ranks, cwd=folder(tmp_path / "whole")).succeed()
            untouched[key] = weights(whole)
        world("wobbly.py", *arguments, "--kill", str(at[0]), str(at[1]), ranks=ranks, **where).die()
        move()
        resumed = world("wobbly.py", *arguments, ranks=ranks, **where).succeed()
        assert weights(resumed) == untouched[key], f"killed at {at}"

    return run


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        (1, ()),
        (2, ()),
        (2, ("--lazy",)),
        (4, ("--width", "512")),  # more than two ranks round by the buckets' layout: see Trainer._rehearse
    ],
)
def test_killed_in_mid_epoch_a_run_ends_as_if_it_had_not_been(killed_and_resumed, ranks: int, arguments) -> None:
    killed_and_resumed(ranks, (ranks - 1, FORWARDS[ranks] // 2 + 3), *arguments)


@pytest.mark.proof
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_killed_at_twenty_random_forwards(killed_and_resumed, tmp_path: Path, ranks: int) -> None:
    chance = random.Random(ranks)
    for number in range(20):
        at = (chance.randrange(ranks), chance.randint(1, FORWARDS[ranks]))
        killed_and_resumed(ranks, at, cwd=folder(tmp_path / str(number)))


@pytest.mark.proof
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_at_twenty_random_moments_again_and_again(world, tmp_path: Path, ranks: int) -> None:
    """By the clock, so that it may be in the middle of anything, and the same run over and over."""
    arguments = ("8", "1", "--save_steps", "2", "--slow", "0.002")
    whole = weights(world("wobbly.py", *arguments, ranks=ranks, cwd=folder(tmp_path / "whole")).succeed())
    chance, killed, where = random.Random(ranks), 0, 0
    while killed < 20:
        where += 1
        cwd = folder(tmp_path / str(where))
        for _ in range(3):
            running = world("wobbly.py", *arguments, ranks=ranks, cwd=cwd)
            if running.outlives(chance.uniform(0.05, 1.5)):
                running.forks.kill()
                killed += 1
            else:
                break
        assert weights(world("wobbly.py", *arguments, ranks=ranks, cwd=cwd).succeed()) == whole


@pytest.mark.parametrize(("function", "call"), [("fsync", 5), ("replace", 3), ("replace", 4), ("fsync", 6)])
def test_killed_while_a_snapshot_is_written_the_one_before_or_the_new_one_serves(
    world, untouched, tmp_path: Path, function: str, call: int
) -> None:
    if ("writing",) not in untouched:
        untouched[("writing",)] = weights(world("wobbly.py", cwd=folder(tmp_path / "whole")).succeed())
    world("wobbly.py", "--kill_in", function, str(call)).die()
    assert weights(world("wobbly.py").succeed()) == untouched[("writing",)]


def test_a_node_changed_in_between_changes_nothing(killed_and_resumed, tmp_path: Path) -> None:
    """Rank 1's folder is another one, empty, and rank 0's snapshots were carried elsewhere."""
    cwds = [folder(tmp_path / "node0"), folder(tmp_path / "node1")]

    def move() -> None:
        assert list(cwds[1].iterdir()) == []
        cwds[0], cwds[1], old = folder(tmp_path / "new0"), folder(tmp_path / "new1"), cwds[0]
        shutil.copytree(old / "snapshots", cwds[0] / "snapshots")

    killed_and_resumed(2, (1, 22), move=move, cwds=cwds)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 3)])
def test_another_world_size_sees_the_rest_of_the_epoch_once(world, before: int, after: int) -> None:
    first = world("wobbly.py", "3", "--plain", "--tell", "0", str(FORWARDS[before] // 2), "10", ranks=before).succeed()
    stopped = re.search(r"stopped in epoch 2, after (\d+) of 203 samples", "\n".join(first.out()))
    assert stopped, first.out()
    second = world("wobbly.py", "2", "--plain", ranks=after).succeed()
    assert f"{before} ranks wrote it, {after} go on: every sample is still seen once" in second.err()
    assert "epoch 2: " in second.out()[1]
    # Its mean is over the epoch's first part, too, which ranks saw that are no more. A sample that
    # was seen twice or not at all would move it by a thousand times that.
    assert float(second.out()[1].split()[-1]) == pytest.approx(sum(range(203)) / 203 / 203, abs=1e-7)
    saw = seen(first, -(-203 // before)) + seen(second)
    assert sorted(set(saw)) == list(range(203))
    assert len(saw) == 203 + -(203 - int(stopped[1])) % after  # padding


def test_other_conditions_than_the_snapshots_are_said(world, tmp_path: Path) -> None:
    """All are the same here, so that the snapshot is made to say of one rank that it had two threads."""
    world("wobbly.py", "--total_epochs", "1", "--save_every", "1", ranks=2).succeed()  # as some tutorials have it
    [path] = (tmp_path / "snapshots/wobbly").glob("step-*.pt")
    state = torch.load(path, weights_only=True)
    state["ranks"][1]["conditions"] |= {"threads per rank (OMP_NUM_THREADS)": "2", "torch": "2.4.0"}
    torch.save(state, path)
    said = world("wobbly.py", "2", ranks=2).succeed().err()
    assert f"torch 2.4.0, now {torch.version.__version__}" in said
    assert "threads per rank (OMP_NUM_THREADS) 2, now 1" in said
    assert "now" not in world("wobbly.py", "3", ranks=2).succeed().err()


def test_a_rank_that_fails_ends_with_its_workers(launch) -> None:
    """They ignore SIGTERM, by which Python would end them before it waits for them."""
    code, _, err = launch(str(Path(__file__).parent / "programs/wobbly.py"), "1", "--lazy", "--fail")
    assert code == 1
    assert err.splitlines()[-1].endswith("RuntimeError: of its own")


def seen(ranks, skipped: int = 0) -> list[int]:
    """What the ranks have seen, without the first so many of each, nor what they only rehearsed with."""
    skipped += 8 * (len(ranks.pids) > 2)
    lines = [line for rank in range(len(ranks.pids)) for line in ranks.out(rank) if line.startswith("saw")]
    return [int(word) for line in lines for word in line.split()[1 + skipped :]]


@pytest.mark.parametrize("asked_by", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_all_ranks_keep_the_next_step(world, tmp_path: Path, asked_by: signal.Signals) -> None:
    """One rank is told in its fifth forward, and all others learn of it with it."""
    running = world("wobbly.py", "100", "100", "--tell", "1", "5", str(int(asked_by)), ranks=2).succeed()
    assert running.out()[0] == (
        "stopped in epoch 1, after 80 of 203 samples, with step-00000005.pt; "
        "the same command goes on from snapshots/wobbly"
    )
    assert sorted(path.name for path in (tmp_path / "snapshots" / "wobbly").iterdir()) == ["last", "step-00000005.pt"]
