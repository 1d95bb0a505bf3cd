"""What is found to draw in a run's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuops.runs.report.curves import MAX_NAMES, Figures, find_curves, read_usage
from gpuops.sync.run_folder import RunHome
from tests.unit.runs.report.test_scalars import FILE, scalar


def never() -> bool:
    return False


def told(text: bytes) -> dict[str, list[float]]:
    figures = Figures()
    figures.search(text)
    return {name: list(series.values) for name, series in figures.found.items()}


@pytest.mark.parametrize(
    ("line", "found"),
    [("epoch 3: loss 0.12", {"loss": [0.12]}), ("step=4 loss=1.5e-3 lr=1", {"loss": [1.5e-3]}),
     ("Loss: 12", {"loss": [12]}), ("{'loss': 0.5, 'epoch': 1}", {"loss": [0.5]}), ("lossless 3", {}), ("loss nan", {}),
     ("Train loss -.5", {"train loss": [-0.5]}), ("val_loss 3", {"val loss": [3]}),
     ("loss 3, test loss 4\nloss 2, test loss 3", {"loss": [3, 2], "test loss": [4, 3]}),
     ("loss 3\rloss 2", {"loss": [3, 2]}), ("loss 3 loss 2", {"loss": [3]}),
     ("Test set: Average loss: 0.05, Accuracy: 9842/10000 (98%)", {"average loss": [0.05]}),
     ("loss 0.1 and accuracy 0.9", {"loss": [0.1], "accuracy": [0.9]}), ("loss 1" + "0" * 400, {})],
)  # fmt: skip
def test_printed_figures(line: str, found: dict[str, list[float]]) -> None:
    assert told(line.encode()) == found


@pytest.mark.parametrize("noise", [b"loss" + b" " * 500_000 + b"x", b"loss " + b"1" * 500_000, b"step " * 100_000])
def test_a_log_cannot_hold_up_the_search(noise: bytes) -> None:
    assert told(noise) == {}  # of a search in quadratic time: hours


def test_a_log_of_ever_new_names_fills_no_memory() -> None:
    assert len(told(b"\n".join(b"a%d loss 1" % number for number in range(3 * MAX_NAMES)))) == MAX_NAMES


@pytest.fixture
def home(tmp_path: Path) -> RunHome:
    logs = tmp_path / "logs/node0"
    logs.mkdir(parents=True)
    (logs / "rank10.out").write_text("loss 9\nloss 8\n")
    (logs / "rank2.out").write_text("loss 3\nno number\nloss 2\nloss 1")
    (logs / "rank2.err").write_text("loss 1\n")
    (logs / "times.jsonl").write_text("loss 1\nloss 2\n")
    return RunHome(tmp_path)


def test_a_line_for_each_rank_that_prints_losses(home: RunHome) -> None:
    [curve] = find_curves(home, never)
    assert [(line.name, list(line.points)) for line in curve.lines] == [
        ("node0 rank2", [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]), ("node0 rank10", [(1.0, 9.0), (2.0, 8.0)]),
    ]  # fmt: skip


FIRST = """\
[GPU0] Epoch {0} | Batchsize: 32 | Steps: 24
loss 0.{0}5, test accuracy 0.9{0}
"""
GPT = "step {0}0: loss 2.{0}, test loss 2.{0}1, 3,210 letters/s\n"


@pytest.mark.parametrize(
    ("line", "x", "first", "names"),
    [(FIRST, "epoch", 1, ["loss", "test accuracy"]), (GPT, "step", 10, ["loss", "test loss"]),
     ("Epoch 1 [{0}/9] loss {0}\n", "printed line", 1, ["loss"]), ("loss {0}\n", "printed line", 1, ["loss"])],
)  # fmt: skip
def test_each_name_is_a_curve_over_what_its_lines_tell(
    tmp_path: Path, line: str, x: str, first: float, names: list[str]
) -> None:
    logs = tmp_path / "logs/node0"
    logs.mkdir(parents=True)
    (logs / "rank0.out").write_text("".join(map(line.format, range(1, 4))))
    curves = find_curves(RunHome(tmp_path), never)
    assert [(curve.title, curve.x, curve.lines[0].points[0][0]) for curve in curves] == [(n, x, first) for n in names]
    assert [len(curve.lines[0].points) for curve in curves] == [3] * len(names)


def test_tensorboards_files_go_before_printed_lines(home: RunHome) -> None:
    board = home.out / "outputs/a"
    board.mkdir(parents=True)
    (board / "events.out.tfevents.1").write_bytes(FILE)
    assert [(curve.title, list(curve.lines[0].points)) for curve in find_curves(home, never)] == [
        ("loss", [(0, 2.5)]), ("acc", [(70_000, 0.5)]),
    ]  # fmt: skip


def test_what_a_node_used(home: RunHome) -> None:
    gpu = {"index": 1, "use": 50, "memory_mb": 10, "memory_total_mb": 40, "power_w": None}
    lines = [json.dumps({"at": 1010.0, "cores": 4, "cpu": 1.0, "memory": [1, 2], "gpus": [gpu]}), "torn"]
    (home.path / "logs/node0/usage.jsonl").write_text("\n".join(lines))
    usage = read_usage(home, 0, since=1000.0, skew=5.0, is_late=never)
    assert [(line.name, list(line.points)) for line in usage.machine] == [
        ("CPU", [(15.0, 25.0)]), ("memory", [(15.0, 50.0)]),
    ]  # fmt: skip
    assert [(line.name, list(line.points)) for line in (*usage.gpus, *usage.gpu_memory)] == [
        ("GPU 1", [(15.0, 50.0)]), ("GPU 1", [(15.0, 25.0)]),
    ]  # fmt: skip
    assert list(usage.power) == []
    assert list(read_usage(home, 1, 0.0, 0.0, never).machine) == []


def test_a_log_is_read_in_blocks_of_whole_lines_while_there_is_time(home: RunHome) -> None:
    lines = [f"step {number} loss {number}" for number in range(1, 100_001)]
    (home.path / "logs/node0/rank2.out").write_text("\n".join(lines))
    for other in ("rank10.out", "rank2.err"):
        (home.path / "logs/node0" / other).unlink()
    [line] = find_curves(home, never)[0].lines
    assert (line.points[0], line.points[-1]) == ((1.0, 1.0), (100_000.0, 100_000.0))
    looks = iter([False, False])  # before the file, before its first block, before the second
    [line] = find_curves(home, lambda: next(looks, True))[0].lines
    assert line.points[-1][0] < 100_000


def test_steps_that_a_later_file_tells_anew_are_drawn_once(tmp_path: Path) -> None:
    board = RunHome(tmp_path).out / "outputs/a"
    board.mkdir(parents=True)
    (board / "events.out.tfevents.1.host").write_bytes(b"".join(scalar("loss", step, 9.0 - step) for step in range(4)))
    (board / "events.out.tfevents.2.host").write_bytes(scalar("loss", 2, 0.5) + scalar("loss", 3, 0.25))
    [curve] = find_curves(RunHome(tmp_path), never)
    assert list(curve.lines[0].points) == [(0, 9.0), (1, 8.0), (2, 0.5), (3, 0.25)]


def test_ever_new_tags_fill_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.runs.report.curves.MAX_TAGS", 3)
    board = RunHome(tmp_path).out / "outputs"
    board.mkdir(parents=True)
    scalars = b"".join(scalar(f"t{number}", step, 1.0) for step in range(2) for number in range(5))
    (board / "events.out.tfevents.1.host").write_bytes(scalars)
    curves = find_curves(RunHome(tmp_path), never)
    assert [(curve.title, len(curve.lines[0].points)) for curve in curves] == [("t0", 2), ("t1", 2), ("t2", 2)]
