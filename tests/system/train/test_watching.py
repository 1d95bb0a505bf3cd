"""What there is to look at: scalars, traces, measurements."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def test_without_tensorboard_one_sentence_and_the_training_goes_on(world, tmp_path: Path) -> None:
    (tmp_path / "hide" / "tensorboard").mkdir(parents=True)
    (tmp_path / "hide" / "tensorboard" / "__init__.py").write_text("raise ImportError('hidden')")
    ran = world("wobbly.py", "1", "--tensorboard", "--hide", str(tmp_path / "hide"), ranks=2).succeed()
    assert ran.err().splitlines()[1:] == [
        "TensorBoard is not installed, so no scalars are written: pip install tensorboard"
    ]
    assert "epoch 1:" in ran.out()[0]
    assert not (tmp_path / "outputs").exists()


def test_scalars_of_every_epoch_once_also_after_a_resume(world, tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    world("wobbly.py", "3", "--tensorboard", ranks=2).succeed()
    (tmp_path / "snapshots" / "wobbly" / "last").write_text("step-00000026.pt\n")
    world("wobbly.py", "4", "--tensorboard", ranks=2).succeed()
    events = accumulator.EventAccumulator(str(tmp_path / "outputs" / "wobbly")).Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "target", "learning rate"}
    assert [scalar.step for scalar in events.Scalars("loss")] == [13, 26, 39, 52]


def test_a_trace_of_each_rank_is_there_for_perfetto(world, tmp_path: Path) -> None:
    ran = world("wobbly.py", "1", "--profile", ranks=2).succeed()
    assert "trace in outputs/wobbly/trace-rank0.json, one of each rank" in ran.err()
    said = ran.err().splitlines()
    at = next(number for number, line in enumerate(said) if re.fullmatch(r"10 dearest operations of 4 steps .*", line))
    row = re.compile(r" +\d+\.\d\d ms +(\d+)% +\d+ x (?!ProfilerStep|forward|backward|optimizer)\S.*")
    shares = [int(row.fullmatch(line)[1]) for line in said[at + 1 : at + 11]]
    assert shares == sorted(shares, reverse=True)
    assert re.fullmatch(r"all-reduce under way for [1-9]\d*% of these steps", said[at + 11])
    for rank in range(2):
        trace = json.loads((tmp_path / "outputs" / "wobbly" / f"trace-rank{rank}.json").read_text())
        names = [event.get("name") for event in trace["traceEvents"]]
        assert [names.count(part) for part in ("forward", "backward", "optimizer")] == [4, 4, 4]
        assert any("all_reduce" in str(name) or "allreduce" in str(name) for name in names)
        assert trace["distributedInfo"]["rank"] == rank


def test_a_benchmark_tells_rates_and_parts_and_keeps_nothing(world, tmp_path: Path) -> None:
    ran = world("step_cost.py", str(PROGRAMS / "wobbly.py"), ranks=2).succeed()
    told = "\n".join(ran.out())
    rate, each = figures(r"samples/s +([\d,]+), ([\d,]+) per rank", told)
    [alone] = figures(r"one rank alone +([\d,]+), measured while the others waited", told)
    [efficiency] = figures(r"efficiency +(\d+)% of 2 times that", told)
    assert each == pytest.approx(rate / 2, abs=1)
    assert efficiency == pytest.approx(100 * rate / 2 / alone, abs=1)
    for part in ("step", "communication", "data", "forward", "backward", "optimizer"):
        assert re.search(rf"^ *{part} +\d+\.\d\d ms", told, re.MULTILINE), part
    assert re.search(r"arithmetic +[\d.,]+ GFLOP/s per rank, [\d.]+% of the [\d,]+ that", told)
    assert list(tmp_path.iterdir()) == []


def figures(pattern: str, text: str) -> list[int]:
    return [int(figure.replace(",", "")) for figure in re.search(pattern, text).groups()]


def told_in(file: Path) -> dict[str, float]:
    """What a rank told, but how long it waited for its data."""
    document = json.loads(file.read_text())
    assert 0.0 <= document.pop("data_wait") <= 1.0
    return document


def test_rank_0_tells_how_far_it_is_and_what_a_snapshot_has(world, tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    world("wobbly.py", "2", ranks=2, GPUOPS_PROGRESS=str(file)).succeed()
    assert told_in(file) == {"step": 26, "epoch": 2, "saved": 26}
    assert told_in(file.with_name("progress.json.1")) == {"step": 26, "epoch": 2, "saved": 26}
    file.unlink()
    (tmp_path / "snapshots" / "wobbly" / "last").write_text("step-00000026.pt\n")
    world("wobbly.py", "2", ranks=2, GPUOPS_PROGRESS=str(file)).succeed()
    assert told_in(file) == {"step": 26, "epoch": 2, "saved": 26}, "resumed, with nothing left to learn"
    assert not file.with_name("progress.json.new").exists()


def test_what_cannot_be_told_stops_no_training(world, tmp_path: Path) -> None:
    ran = world("wobbly.py", "1", GPUOPS_PROGRESS=str(tmp_path / "nowhere" / "progress.json")).succeed()
    assert "epoch 1:" in ran.out()[0]
    assert len(ran.err().splitlines()) == 1


def test_a_long_epoch_tells_how_far_it_is(world) -> None:
    said = world("wobbly.py", "1", "--told_every", "0", ranks=2).succeed().err().splitlines()
    assert len(said) == 1 + 13
    assert re.fullmatch(r"epoch 1: 16 of 203 samples, loss \d\.\d{4} on rank 0", said[1])


def test_steps_since_the_newest_snapshot_are_told_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddp.watching import Progress

    monkeypatch.setenv("GPUOPS_PROGRESS", str(tmp_path / "progress.json"))
    clock = iter([10.0, 10.5, 10.6, 11.6, 11.7])
    # Not everybody's clock: other tests have left threads that look at theirs.
    monkeypatch.setattr("ddp.watching.time", SimpleNamespace(monotonic=lambda: next(clock)))

    class Rank:
        rank = 0

    told, progress = [], Progress(Rank())
    for step, saved in ((1, False), (2, False), (3, True), (4, False), (5, False)):
        progress.waited += 0.25 * (step == 4)
        progress.tell(step, 0, saved=saved)
        told.append(json.loads((tmp_path / "progress.json").read_text()))
    first = {"step": 1, "epoch": 0, "saved": None, "data_wait": 0.0}
    third, fourth = {**first, "step": 3, "saved": 3}, {"step": 4, "epoch": 0, "saved": 3, "data_wait": 0.25}
    assert told == [first, first, third, fourth, fourth]
