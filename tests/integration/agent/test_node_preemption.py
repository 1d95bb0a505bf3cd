"""A machine that its provider takes back: the run stops in good order, everywhere, and says why."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.run_models import RunRequest
from gpuops.runs.outcome.node_report import parse_report
from gpuops.runs.outcome.verdict import judge
from tests.fakes.aws.imds import Service
from tests.files import change
from tests.integration.agent.conftest import RealNode, until
from tests.integration.agent.test_node_snapshot import SAVES, ends_well, goes_on, reasons, saved

STEPS = """
import json, os, signal, sys, time
stopping = []
signal.signal(signal.SIGUSR1, lambda *_: stopping.append(1))
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may come while the snapshot is written
step = 100
while not stopping:
    step += 1
    with open(os.environ["GPUOPS_PROGRESS"] + ".new", "w") as file:
        json.dump({"step": step, "saved": 100}, file)
    os.replace(os.environ["GPUOPS_PROGRESS"] + ".new", os.environ["GPUOPS_PROGRESS"])
    print("step", flush=True)
    time.sleep(0.05)
for name in ("last.pt", "only-%s.pt" % os.environ["GPUOPS_NODE"]):
    with open(name, "w") as file:
        file.write(str(step))
with open(os.environ["GPUOPS_PROGRESS"], "w") as file:
    json.dump({"step": step, "saved": step}, file)
"""
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


class Metadata:
    """The metadata service of one machine."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, str] = {}
        self._write()
        self.service = Service(("127.0.0.1", 0), str(file))
        threading.Thread(target=self.service.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{self.service.server_address[1]}"
        self.settings = {"kind": "ec2", "url": url, "every_s": 0.2}

    def _write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({f"/latest/meta-data/{path}": text for path, text in self._known.items()}))
        new.replace(self._file)

    def interrupt(self, in_s: float) -> float:
        """The notice; when the machine goes (UTC seconds)."""
        at = int(time.time() + in_s)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        self._known["spot/instance-action"] = json.dumps({"action": "terminate", "time": when})
        self._write()
        return float(at)

    def recommend(self) -> None:
        self._known["events/recommendations/rebalance"] = json.dumps({"noticeTime": "2026-11-20T08:20:00Z"})
        self._write()


@pytest.fixture
def machine(tmp_path: Path, make_node: Callable[..., RealNode]) -> Iterator[Callable[..., tuple[RealNode, Metadata]]]:
    """`machine(index)`: a node on a machine with a metadata service."""
    made: list[Metadata] = []

    def make(index: int = 0) -> tuple[RealNode, Metadata]:
        metadata = Metadata(tmp_path / f"imds{index}.json")
        made.append(metadata)
        node = make_node(index)
        change(node.folder / "node.json", notices=metadata.settings)
        return node, metadata

    yield make
    for metadata in made:
        metadata.service.shutdown()
        metadata.service.server_close()


def events(node: RealNode, kind: str, run: str = "r-1") -> list[dict[str, Any]]:
    lines = node.file(run, "events.jsonl").decode().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def notices(node: RealNode) -> list[str]:
    return [event["reason"]["kind"] for event in events(node, "notice")]


def verdict(*results: dict[str, Any]) -> Any:
    request = RunRequest(kind="command", mode="run", nodes=len(results), gpus=None, argv=("x",))
    return judge(request, 0, [parse_report(result["node"], result) for result in results], run="r-1", saved=True)


def started(node: RealNode, stream: str = "launcher.out") -> None:
    until(lambda: node.file("r-1", stream), "it has begun")


def test_a_hint_is_noted_and_a_notice_stops_the_run_with_its_last_snapshot(
    machine: Callable[..., tuple[RealNode, Metadata]],
) -> None:
    node, metadata = machine()
    node.python("r-1", STEPS, grace_s=30.0)
    started(node)
    metadata.recommend()
    until(lambda: notices(node) == ["rebalance"], "the hint is noted")
    assert node.says("run", run="r-1")["ok"]["state"] == "running"
    at = metadata.interrupt(in_s=115)
    result = node.result("r-1")
    say = time.strftime("AWS takes node0 back at %H:%M:%SZ", time.gmtime(at))
    assert result["outcome"] == "stopped"
    assert result["reason"] == {"kind": "reclaim", "by": "AWS", "say": say, "at": at, "node": 0}
    assert result["launcher"] == {"code": 0, "signal": None}, "it ended by itself, with a snapshot"
    assert notices(node) == ["rebalance", "reclaim"]
    step = int((node.folder / "project/last.pt").read_text())
    assert result["progress"] == {"step": step, "saved": step}
    told = verdict(result)
    when = time.strftime("%H:%M:%SZ", time.gmtime(at))
    assert (told.outcome, told.exit_code) == ("reclaimed", 4)
    assert told.say == f"reclaimed by AWS at step {step} (node0 at {when}); the newest snapshot is of step {step}"


def test_what_does_not_listen_is_ended_while_there_is_time(machine: Callable[..., tuple[RealNode, Metadata]]) -> None:
    """Its grace of ten minutes is more than a machine has that goes in 41 seconds, 40 of them kept for results."""
    node, metadata = machine()
    node.python("r-1", DEAF, grace_s=600.0)
    started(node)
    at = metadata.interrupt(in_s=41)
    result = node.result("r-1")
    assert result["launcher"] == {"code": None, "signal": 9}
    assert result["ended"] < at
    assert verdict(result).say.startswith("reclaimed by AWS (node0 at ")


def test_a_machine_that_goes_takes_no_other_run(machine: Callable[..., tuple[RealNode, Metadata]]) -> None:
    node, metadata = machine()
    node.python("r-1", STEPS)
    started(node)
    metadata.interrupt(in_s=115)
    node.result("r-1")
    with pytest.raises(Exception, match=r"this node is ending: AWS takes node0 back at"):
        node.python("r-2", STEPS)


def start_both(nodes: list[RealNode], source: str = STEPS, **more: Any) -> None:
    port = nodes[0].client().call("port", address="127.0.0.1").port
    gang = {"address": "127.0.0.1", "port": port}
    for node in nodes:
        node.python("r-1", source, secret="secret", nodes=2, gang=gang, grace_s=30.0, **more)
    for node in nodes:
        started(node)


@pytest.mark.parametrize("going", [0, 1])
def test_all_nodes_stop_and_all_of_them_say_the_same(
    machine: Callable[..., tuple[RealNode, Metadata]], going: int
) -> None:
    (first, one), (second, other) = machine(0), machine(1)
    start_both([first, second])
    at = (one, other)[going].interrupt(in_s=115)
    results = [node.result("r-1") for node in (first, second)]
    reason = results[going]["reason"]
    assert (reason["kind"], reason["node"], reason["at"]) == ("reclaim", going, at)
    assert results[1 - going]["reason"] == {**reason, "from": going}
    assert [result["launcher"]["code"] for result in results] == [0, 0], "both have saved"
    assert [notices(node) for node in (first, second)] == [["reclaim"] if index == going else [] for index in (0, 1)]
    alone = [verdict(result) for result in results]
    assert alone[0].outcome == alone[1].outcome == "reclaimed"
    assert alone[0].node == alone[1].node == going
    assert verdict(*results).say == verdict(*results[::-1]).say


def test_a_hint_at_one_machine_saves_on_all_of_them(machine: Callable[..., tuple[RealNode, Metadata]]) -> None:
    """Rank 0 is mostly the one that writes, and only sees the file of its own node."""
    (first, _), (second, metadata) = machine(0), machine(1)
    nodes = [first, second]
    start_both(nodes, SAVES)
    metadata.recommend()
    until(lambda: saved(first) == saved(second) == 1, "both have saved")
    until(lambda: reasons(first) and reasons(second), "and that is noted")
    hint = {"kind": "rebalance", "by": "AWS", "say": "AWS may take node1 back soon", "node": 1}
    [reason] = reasons(second)
    assert {name: reason[name] for name in hint} == hint
    assert reasons(first) == [{**reason, "from": 1}]
    for node in nodes:
        goes_on(node)
    ends_well(*nodes)
    assert saved(first) == saved(second) == 1


def test_a_snapshot_that_nobody_fetches_is_handed_to_the_node_that_stays(
    machine: Callable[..., tuple[RealNode, Metadata]],
) -> None:
    (first, metadata), (second, _) = machine(0), machine(1)
    start_both([first, second], hold_s=600.0)
    at = metadata.interrupt(in_s=46)  # the client that started it was here a moment ago: half a minute is left for it
    step = (first.result("r-1"), second.result("r-1"))[0]["progress"]["step"]
    [took] = until(lambda: events(second, "took"), "the other node has it")
    assert took["at"] < at
    assert took["of"] == 0
    assert took["files"] in (1, 2), "last.pt as well where the first node wrote it later"
    assert (second.folder / "project/only-0.pt").read_text() == str(step)
    assert until(lambda: events(first, "handed"), "the one that gave it says so, too")[0]["to"] == 1


TRAINS = """
import os, signal, sys, time
import torch, torch.distributed as dist
stopping = torch.zeros(1)
signal.signal(signal.SIGUSR1, lambda *_: stopping.fill_(1))
dist.init_process_group("gloo")
step, asked = 0, torch.zeros(1)
while not asked:
    asked = stopping.clone()
    dist.all_reduce(asked)
    step += 1
    print(step, flush=True)
    time.sleep(0.05)
if dist.get_rank() == 0:
    torch.save({"step": step}, "last.pt")
dist.barrier()
dist.destroy_process_group()
"""


def test_a_real_world_of_two_machines_saves_and_leaves_together(
    machine: Callable[..., tuple[RealNode, Metadata]], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    script = tmp_path / "script.py"
    script.write_text(TRAINS)
    (first, _), (second, metadata) = machine(0), machine(1)
    master, gang = (
        {"address": "127.0.0.1", "port": first.client().call("port", address="127.0.0.1").port} for _ in range(2)
    )
    env = {"PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    for node in (first, second):
        argv = [
            *[sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node.index}"],
            *["--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={master['port']}", "--rdzv-id=r-1-a0"],
            *["--max-restarts=0", "--log-dir={run}/torchrun", "--no-python"],
            *["{python}", "-I", "{agent}", "rank", "--node-run", "{run}", "--", sys.executable, str(script)],
        ]
        more = {"kind": "torchrun", "nodes": 2, "rank_base": node.index, "world": 2, "env": env, "grace_s": 30.0}
        node.start("r-1", argv, secret="secret", master=master, gang=gang, **more)
    started(first, "ranks/0.out")
    started(second, "ranks/1.out")
    metadata.interrupt(in_s=115)
    results = [node.result("r-1") for node in (first, second)]
    assert [result["reason"]["kind"] for result in results] == ["reclaim", "reclaim"]
    assert [rank["code"] for result in results for rank in result["ranks"]] == [0, 0]
    steps = [node.file("r-1", f"ranks/{node.index}.out").split()[-1] for node in (first, second)]
    assert steps[0] == steps[1]
    assert torch.load(first.folder / "project/last.pt")["step"] == int(steps[0])
    assert os.path.getmtime(first.folder / "project/last.pt") <= results[0]["ended"]
    request = RunRequest(kind="torchrun", mode="multinode", nodes=2, gpus=None, script="script.py")
    assert (
        judge(
            request, 2, [parse_report(index, result) for index, result in enumerate(results)], run="r-1", saved=True
        ).exit_code
        == 4
    )
