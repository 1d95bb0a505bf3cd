"""What a machine, its GPUs and a run's ranks use, as the kernel and nvidia-smi tell it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.node import Node
from gpuops.agent.run_documents import LaunchSpec
from gpuops.agent.usage import gpus, machine, record
from gpuops.agent.usage.gpus import GpuWatch, parse_row
from gpuops.agent.usage.printed_counts import MAX_READ_BYTES, find_counts
from gpuops.agent.usage.sampler import Sampler, visible_gpus
from gpuops.transport.validation import parse_usage

SMI = """\
0, 97, 41234, 81559, 61, 412.33
1, 0, 3, 81559, 29, 68.10
2, [N/A], 20000, 40960, 55, [N/A]
3, [Unknown Error], [GPU requires reset], 81559, [Not Supported], [N/A]
No devices were found
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.
"""


def test_four_gpus_of_which_not_all_say_everything() -> None:
    rows = [row for row in map(parse_row, SMI.splitlines()) if row]
    assert [list(row.values()) for row in rows] == [
        [0, 97.0, 41234.0, 81559.0, 61.0, 412.33],
        [1, 0.0, 3.0, 81559.0, 29.0, 68.1],
        [2, None, 20000.0, 40960.0, 55.0, None],
        [3, None, None, 81559.0, None, None],
    ]


def test_without_nvidia_smi_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus.shutil, "which", lambda _: None)
    with GpuWatch(0.5) as watch:
        assert watch.latest() == []


@pytest.mark.parametrize(
    ("env", "expected"),
    [({}, None), ({"CUDA_VISIBLE_DEVICES": "2,3"}, [2, 3]), ({"CUDA_VISIBLE_DEVICES": ""}, []),
     ({"CUDA_VISIBLE_DEVICES": "GPU-5f0c"}, None)],
)  # fmt: skip
def test_which_gpus_a_run_may_use(env: dict[str, str], expected: list[int] | None) -> None:
    assert visible_gpus(LaunchSpec("r-1", env=env)) == expected


def test_the_kernels_counters() -> None:
    assert machine.parse_cpu("cpu  100 0 50 900 30 5 5 40 0 0\ncpu0 1 2\n") == 200 / machine.os.sysconf("SC_CLK_TCK")
    assert machine.parse_cpu("") is None
    net = [
        "Inter-|   Receive",
        "  lo: 99 0 0 0 0 0 0 0 99 0",
        " eth0: 1000 1 0 0 0 0 0 0 200 3",
        "veth1: 7 0 0 0 0 0 0 0 7",
    ]
    assert machine.parse_net(net) == [1000, 200]
    assert machine.parse_net([]) is None
    bond = ["bond0: 9 0 0 0 0 0 0 0 9", "eth0: 5 0 0 0 0 0 0 0 5", "eth1: 4 0 0 0 0 0 0 0 4", "br0: 9 0 0 0 0 0 0 0 9"]
    assert machine.parse_net(bond, ["eth0", "eth1", "eth2"]) == [9, 9], "what passes two interfaces counts once"
    assert machine.parse_net(net, ["ens5"]) == [1000, 200], "a container sees none of its host's"
    disks = ["8 0 sda 5 0 10 0 3 0 20 0 0 0 0", "8 1 sda1 5 0 10 0 3 0 20 0 0 0 0"]
    assert machine.parse_disks(disks, ["sda"]) == [5120, 10240]
    assert machine.parse_available("MemTotal: 10 kB\nMemAvailable:  4 kB\n") == 4096


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_weeks_run_has_a_small_record() -> None:
    age_s, lines = 0.0, 0
    while age_s < 7 * 86400:
        age_s += record.interval_s(age_s)
        lines += 1
    assert 3600 < lines < 15_000


def test_a_record_fits_its_shape(tmp_path: Path) -> None:
    node, clock = Node(str(tmp_path)), Clock()
    Path(node.run("r-1")).mkdir(parents=True)
    usage = record.UsageRecord(node, LaunchSpec("r-1"), clock)
    usage.start()
    for _ in range(30):
        clock.now += 1
        usage.check()
    usage.close()
    lines = Path(node.run("r-1"), "usage.jsonl").read_bytes().splitlines()
    assert len(lines) == 4
    assert all(parse_usage(line) for line in lines)


def test_a_record_that_cannot_be_written_costs_no_run(tmp_path: Path) -> None:
    clock = Clock()
    usage = record.UsageRecord(Node(str(tmp_path)), LaunchSpec("r-1"), clock)
    usage.start()
    clock.now += 60
    usage.check()
    usage.close()


def test_a_record_that_fails_lets_nvidia_smi_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    usage = record.UsageRecord(Node(str(tmp_path)), LaunchSpec("r-1"), clock)
    usage.start()
    assert usage._gpus._users == 1

    def fail(*_: Any) -> None:
        raise ValueError("what no kernel has said yet")

    monkeypatch.setattr(machine, "parse_net", fail)
    clock.now += 60
    usage.check()
    usage.close()
    assert usage._gpus._users == 0


def test_a_ranks_rate_is_that_of_the_steps_it_tells(tmp_path: Path) -> None:
    node = Node(str(tmp_path))
    run = Path(node.run("r-1"))
    (run / "ranks").mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    (run / "ranks/1.json").write_text(json.dumps({"rank": 1, "local": 1, "pid": 1 << 22}))
    (run / "ranks/2.json").write_text(json.dumps({"rank": 2, "pid": 1 << 22, "code": 0, "ended": 5.0}))
    sampler = Sampler(node, GpuWatch(0.5))

    def told(step: int, at: float) -> dict[str, Any]:
        file = run / "progress.json.1"
        file.write_text(json.dumps({"step": step, "data_wait": 0.25}))
        machine.os.utime(file, (at, at))
        [rank] = sampler.sample("r-1")["run"]["ranks"]
        return dict(rank)

    assert told(100, 1000.0)["rate"] is None
    second = told(150, 1002.0)
    assert (second["rank"], second["step"], second["rate"], second["data_wait"]) == (1, 150, 25.0, 0.25)
    assert told(150, 1002.0)["rate"] == 25.0
    assert sampler.sample(None)["run"] is None


def test_a_rank_that_hangs_gets_slower(tmp_path: Path) -> None:
    node, now = Node(str(tmp_path)), [0.0]
    run = Path(node.run("r-1"))
    (run / "ranks").mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    (run / "ranks/0.json").write_text(json.dumps({"rank": 0, "pid": 1 << 22}))
    sampler = Sampler(node, GpuWatch(0.5), lambda: now[0])

    def rate(step: int, at: float, passed_s: float) -> float | None:
        now[0] += passed_s
        file = run / "progress.json"
        file.write_text(json.dumps({"step": step}))
        machine.os.utime(file, (at, at))
        found: float | None = sampler.sample("r-1")["run"]["ranks"][0]["rate"]
        return found

    assert rate(100, 1000.0, 0.5) is None
    assert rate(140, 1002.0, 2.0) == 20.0
    assert rate(140, 1002.0, 1.5) == 20.0, "the next line is not due yet"
    assert rate(140, 1003.0, 0.5) == 20.0, "the same step, told once more as its snapshot is there"
    assert rate(140, 1003.0, 398.0) == 0.1


@pytest.mark.parametrize(
    ("line", "found"),
    [("step 120 loss 2.1", {"step": 120}), ("[GPU11] Epoch 47 | Batchsize: 32 | Steps: 4", {"epoch": 47}),
     ("Epoch [3/20], Step [100/600], Loss: 0.1", {"epoch": 3, "step": 100}), ("iter 40: loss 2.2", {"step": 40}),
     ("{'loss': 0.5, 'epoch': 1.25}", {"epoch": 1.25}), ("global_step=500", {"step": 500}), ("step_time: 3", {}),
     ("step             8.18 ms", {}), ("811 weights; 0 steps are done", {}), ("step " + "9" * 400, {})],
)  # fmt: skip
def test_a_printed_line_tells_how_far_a_program_is(line: str, found: dict[str, float]) -> None:
    assert dict(find_counts(line.encode())) == found


def test_a_rank_that_tells_nothing_is_where_its_printed_lines_say(tmp_path: Path) -> None:
    node = Node(str(tmp_path))
    run = Path(node.run("r-1"))
    (run / "ranks").mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    (run / "ranks/0.json").write_text(json.dumps({"rank": 0, "pid": 1 << 22}))
    sampler = Sampler(node, GpuWatch(0.5))

    def printed(text: str, at: float, stream: str = "out") -> list[Any]:
        file = run / f"ranks/0.{stream}"
        with file.open("a") as lines:
            lines.write(text)
        machine.os.utime(file, (at, at))
        [rank] = sampler.sample("r-1")["run"]["ranks"]
        return [rank[name] for name in ("epoch", "step", "rate")]

    assert printed("starting\n", 999.0) == [None, None, None]
    assert printed("step 98 of epoch 1\nstep 100\nstep 1", 1000.0) == [1, 100, None]
    assert printed("50\n", 1002.0) == [1, 150, 25.0], "a line that was half there is read again"
    assert printed("epoch 2\r", 1003.0, "err") == [2, 150, 25.0]
    assert printed("x" * 3 * MAX_READ_BYTES + "\nstep 170\n", 1004.0) == [2, 170, 10.0]
    (run / "progress.json").write_text(json.dumps({"step": 7}))
    assert printed("step 180\n", 1005.0)[:2] == [None, 7], "what it tells goes before what it prints"
