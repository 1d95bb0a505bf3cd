"""What is said beside a run: once that it is silent, once where its curves are."""

from __future__ import annotations

import dataclasses
import io
import json
import tracemalloc
from pathlib import Path

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core import polling
from gpuops.core.context import Context
from gpuops.core.run_models import RunRequest
from gpuops.nodes.session import ClusterSession
from gpuops.runs.logs.home_tail import HomeTail
from gpuops.runs.logs.lines import LineMerger
from gpuops.runs.monitor import Remarks, board_folder, busy_command, describe_unjoined, show_run, tensorboard_command
from gpuops.sync.run_folder import RunHome
from tests.unit.runs.test_finish import a_cluster, a_run


class Clock(polling.Clock):
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_silence_is_remarked_and_again_where_it_lasts(tmp_path: Path) -> None:
    clock, said = Clock(), list[str]()
    remarks = Remarks(said.append, RunHome(tmp_path), busy_command("lab", gpus=True), clock)
    clock.seconds = 119
    remarks.poll()
    remarks.handle_log_bytes(0, "rank3.err", 0, b"x")
    remarks.handle_log_bytes(0, "times.jsonl", 0, b"{}")
    clock.seconds = 238
    remarks.handle_log_bytes(0, "events.jsonl", 0, b"{}")
    remarks.poll()
    assert said == []
    for clock.seconds in (239, 240, 839, 840):
        remarks.poll()
    remarks.handle_log_bytes(0, "rank3.err", 0, b"x")
    for clock.seconds in (1439, 1440):
        remarks.poll()
    assert said == [
        f"nothing was printed by any rank for {silent} min; what node0 does: gpuops ssh lab -- nvidia-smi"
        for silent in (2, 12, 10)
    ]  # fmt: skip
    assert busy_command("lab", gpus=False) == "gpuops ssh lab -- top -b -n 1"


class EndedFollower:
    """Of a run that ended while its lines were shown: all of them are home."""

    has_ended = True

    def watch(self, _timeout: float) -> bool:
        return True


@pytest.mark.parametrize(
    ("lines", "shown", "said"),
    [
        (20, 20, ""),
        (21, 20, "note: 1 line is not shown: `gpuops logs r-1` has it\n"),
        (5000, 20, "note: 4980 lines are not shown: `gpuops logs r-1` has them\n"),
    ],
)
def test_the_machines_of_an_ended_run_do_not_wait_for_a_long_log(
    world: Context, monkeypatch: pytest.MonkeyPatch, lines: int, shown: int, said: str
) -> None:
    monkeypatch.setattr("gpuops.runs.monitor.REST_MAX_BYTES", 20 * 5)
    out, err = io.StringIO(), io.StringIO()
    world.out = Output(out=out, err=err)
    cluster = a_cluster(world, created=0.0)
    row = a_run(world, cluster, created=0.0)
    home = RunHome(row.home)
    home.folder.write_at(home.log_name(0, "launcher.out"), 0, b"".join(b"%04d\n" % number for number in range(lines)))
    remarks = Remarks(world.out.say, home, "", Clock())
    monkeypatch.setattr("gpuops.runs.monitor.follow_with_remarks", lambda *_: (EndedFollower(), remarks))
    session = ClusterSession(cluster, [])
    show_run(world, session, row, HomeTail(home, LineMerger(nodes=1, ranks=1, kind="command")))
    assert out.getvalue().split() == [f"{number:04}" for number in range(lines - shown, lines)]
    assert err.getvalue().endswith(said)
    assert ("not shown" in err.getvalue()) == bool(said)


def event(kind: str, **data: object) -> bytes:
    return json.dumps({"at": 1.0, "event": kind, **data}).encode() + b"\n"


UNJOINED = (
    "no rank has joined the others yet: the program still imports or prepares (one that starts its own processes is "
    "for `gpuops run -- python my.py 50 10`); after 30 min without a line and without work the run ends "
    "(--join-timeout)"
)


@pytest.mark.parametrize("joined", [False, True])
def test_ranks_that_do_not_join_are_remarked_on_once(tmp_path: Path, joined: bool) -> None:
    said = list[str]()
    request = RunRequest("torchrun", "multinode", 2, None, script="my.py", argv=("50", "10"))
    remarks = Remarks(said.append, RunHome(tmp_path), "", Clock(), describe_unjoined(request))
    if joined:  # on another node
        remarks.handle_log_bytes(1, "events.jsonl", 0, event("joined", rank=2))
    for _ in range(2):
        remarks.handle_log_bytes(0, "events.jsonl", 0, event("unjoined"))
        remarks.poll()
    assert said == ([] if joined else [UNJOINED])


def test_ranks_that_joined_late_are_not_remarked_on_afterwards(tmp_path: Path) -> None:
    said = list[str]()
    remarks = Remarks(said.append, RunHome(tmp_path), "", Clock(), UNJOINED)
    remarks.handle_log_bytes(0, "events.jsonl", 0, event("unjoined") + event("joined", rank=0))
    remarks.poll()
    assert said == []


def test_a_line_of_a_journal_that_never_ends_fills_no_memory(tmp_path: Path) -> None:
    said = list[str]()
    remarks = Remarks(said.append, RunHome(tmp_path), "", Clock(), UNJOINED)
    tracemalloc.start()
    try:
        for number in range(100):
            remarks.handle_log_bytes(0, "events.jsonl", number << 18, b"x" * (1 << 18))
        assert tracemalloc.get_traced_memory()[0] < 8 << 18
    finally:
        tracemalloc.stop()
    remarks.handle_log_bytes(0, "events.jsonl", 100 << 18, b"\n" + event("unjoined"))
    remarks.poll()
    assert said == [UNJOINED]


def test_our_own_programs_and_commands_join_or_need_not() -> None:
    request = RunRequest("torchrun", "multinode", 2, None, script="my.py", join_timeout_s=None)
    assert describe_unjoined(request).endswith("`gpuops run -- python my.py`)")
    assert describe_unjoined(dataclasses.replace(request, workload="digits")) == ""
    assert describe_unjoined(dataclasses.replace(request, kind="command")) == ""


def test_a_node_that_cannot_be_heard_is_not_called_silent(tmp_path: Path) -> None:
    clock, said = Clock(), list[str]()
    remarks = Remarks(said.append, RunHome(tmp_path), "top", clock)
    for clock.seconds in (60, 130, 240):
        remarks.poll(cut_off=True)
    assert said == []
    for clock.seconds in (359, 360):
        remarks.poll()
    assert said == ["nothing was printed by any rank for 2 min; what node0 does: top"]


def test_what_a_provider_says_of_a_machine_is_said_once_however_it_arrives(tmp_path: Path) -> None:
    said = list[str]()
    remarks = Remarks(said.append, RunHome(tmp_path), "", Clock())
    hint = {"kind": "rebalance", "by": "AWS", "say": "AWS may take node1 back soon", "at": 1.0, "node": 1}
    lines = event("started", pid=3) + event("notice", reason=hint) + b"no json\n" + event("notice") + b"[]\n"
    for offset in range(len(lines)):
        remarks.handle_log_bytes(1, "events.jsonl", offset, lines[offset : offset + 1])
        remarks.handle_log_bytes(0, "events.jsonl", offset, b"{")
    remarks.poll()
    remarks.poll()
    assert said == ["AWS may take node1 back soon; the run goes on; a snapshot was asked for"]
    reclaim = {**hint, "kind": "reclaim", "say": "AWS takes node1 back at 08:22:00Z"}
    remarks.handle_log_bytes(
        1, "events.jsonl", len(lines), event("notice", reason=reclaim) + event("stopping", reason=reclaim)
    )
    remarks.say_notices()
    assert said[1:] == ["AWS takes node1 back at 08:22:00Z; the run stops, with a snapshot where its script makes one"]


def test_an_end_that_all_nodes_share_is_said_once_each_time(tmp_path: Path) -> None:
    said = list[str]()
    remarks = Remarks(said.append, RunHome(tmp_path), "", Clock())
    end = {"kind": "lease", "say": "its lease ends in 10 min", "at": 601.0}
    hint = {"kind": "rebalance", "by": "AWS", "say": "AWS may take node0 back soon", "at": 1.0, "node": 0}
    for node, at in ((0, 1.0), (1, 3.5), (0, 3601.0), (1, 3599.0)):
        remarks.handle_log_bytes(node, "events.jsonl", 0, event("snapshot", reason={**end, "node": node}, at=at))
    remarks.handle_log_bytes(2, "events.jsonl", 0, event("snapshot", reason={**end, "node": 0, "from": 0}, at=9999.0))
    remarks.handle_log_bytes(0, "events.jsonl", 0, event("snapshot", reason=hint, at=99.0))  # said with its notice
    remarks.handle_log_bytes(
        0, "events.jsonl", 0, event("snapshot", reason="?") + event("snapshot") + event("snapshot", reason={})
    )
    remarks.say_notices()
    assert said == ["its lease ends in 10 min: a snapshot was asked for"] * 2


def test_curves_that_have_come_home_are_named_once(tmp_path: Path) -> None:
    clock, said = Clock(), list[str]()
    home = RunHome(tmp_path / "runs" / "a-1")
    remarks = Remarks(said.append, home, "", clock)
    clock.seconds = 10
    remarks.poll()
    events = home.out / "my logs" / "v0" / "events.out.tfevents.1.host"
    events.parent.mkdir(parents=True)
    events.touch()
    clock.seconds = 12
    remarks.poll()
    assert said == []
    for clock.seconds in (15, 20):
        remarks.poll()
    assert said == ["curves: gpuops tensorboard a-1"]


def test_the_folder_that_holds_all_of_them(tmp_path: Path) -> None:
    home = RunHome(tmp_path / "runs" / "a-1")
    assert (board_folder(home), tensorboard_command(home)) == (None, "")
    for name in ("tb/train", "tb/valid", "tb"):
        (home.out / name).mkdir(parents=True, exist_ok=True)
        (home.out / name / "events.out.tfevents.1").touch()
    assert board_folder(home) == home.out / "tb"
    assert tensorboard_command(home) == "curves: gpuops tensorboard a-1"
