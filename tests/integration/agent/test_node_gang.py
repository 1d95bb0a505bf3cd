"""Two nodes, one run: what happens to one is known to the other without the client."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.sockets import ESTABLISHED, socket_inodes
from gpuops.core.errors import NodeRefused
from tests.integration.agent.conftest import RealNode, alive, until

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist

def until(name, words, times):
    while not os.path.exists(name) or open(name).read().count(words) < times:
        time.sleep(0.05)

run = os.path.dirname(os.environ["GPUOPS_STOP_FILE"])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("ranks", int(total), flush=True)
until(run + "/events.jsonl", '"event": "joined"', 1)  # that is seen by looking at a rank now and then
try:
    for step in range(100000):
        if int(os.environ["RANK"]) == 1 and step == 10:
            dist.destroy_process_group()  # gloo's threads may abort an interpreter that ends beside them
            raise SystemError("rank 1 has had enough")
        dist.all_reduce(total)
except RuntimeError:  # it has left; who fails for that ends after it, however slowly it does
    until(run.replace("/n0/", "/n1/") + "/ranks/1.json", '"code": 1', 1)
    raise
"""


@pytest.fixture
def pair(make_node: Callable[..., RealNode]) -> tuple[RealNode, RealNode]:
    return make_node(0), make_node(1)


def connected(pid: int, port: int) -> bool:
    """Whether a process has an established connection on this port."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    mine = {row[9] for row in rows if int(row[1].split(":")[1], 16) == port and row[3] == ESTABLISHED}
    return bool(mine & socket_inodes(pid))


def start_both(pair: tuple[RealNode, RealNode], argvs: tuple[list[str], list[str]], **more: Any) -> None:
    port = pair[0].client().call("port", address="127.0.0.1").port
    gang = {"address": "127.0.0.1", "port": port}
    for node, argv in zip(pair, argvs, strict=True):
        node.start("r-1", argv, secret="secret", nodes=2, gang=gang, **more)


@pytest.mark.parametrize("failing", [0, 1])
def test_one_fails_and_the_other_is_stopped(pair: tuple[RealNode, RealNode], failing: int) -> None:
    argvs = (["sleep", "600"], ["sleep", "600"])
    argvs[failing][:] = ["sh", "-c", "sleep 0.5; exit 3"]
    start_both(pair, argvs)
    assert pair[failing].result("r-1")["outcome"] == "failed"
    other = pair[1 - failing].result("r-1")
    assert other["outcome"] == "stopped"
    say = f"node{failing}: the command failed with exit code 3"
    assert other["reason"] == {"kind": "gang", "from": failing, "say": say}


def test_a_stop_on_one_is_a_stop_on_both(pair: tuple[RealNode, RealNode]) -> None:
    start_both(pair, (["sleep", "600"], ["sleep", "600"]))
    pair[1].client().call("stop", run="r-1", how="graceful", why="dinner")
    assert pair[1].result("r-1")["reason"] == {"kind": "stop", "say": "dinner"}
    assert pair[0].result("r-1")["reason"] == {"kind": "gang", "from": 1, "say": "dinner"}


def test_who_is_done_waits_for_nobody(pair: tuple[RealNode, RealNode]) -> None:
    start_both(pair, (["true"], ["sh", "-c", "until test -e enough; do sleep 0.1; done; echo done"]))
    assert pair[0].result("r-1")["outcome"] == "done"
    assert not (pair[1].folder / "runs/r-1/result.json").exists()
    (pair[1].folder / "project/enough").touch()
    assert pair[1].result("r-1")["outcome"] == "done"
    assert pair[1].file("r-1", "launcher.out") == b"done\n"


def test_an_agent_killed_on_one_node_ends_the_other_by_silence(pair: tuple[RealNode, RealNode]) -> None:
    start_both(pair, (["sleep", "600"], ["sleep", "600"]))
    agent, heads = pair[1].process("agent"), pair[0].process("agent")
    port = json.loads((pair[0].folder / "runs/r-1/spec.json").read_text())["gang"]["port"]
    until(lambda: connected(heads, port), "the agents are linked")
    os.kill(agent, signal.SIGKILL)
    until(lambda: not alive(agent), "the agent is dead")
    assert pair[1].result("r-1")["outcome"] == "lost"
    other = pair[0].result("r-1")
    assert (other["outcome"], other["reason"]["kind"], other["reason"]["from"]) == ("stopped", "gang", 1)


def test_a_port_that_is_taken_is_a_refusal(pair: tuple[RealNode, RealNode]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = {"address": "127.0.0.1", "port": taken.getsockname()[1]}
        with pytest.raises(NodeRefused) as refused:
            pair[0].start("r-1", ["true"], secret="secret", nodes=2, gang=place)
    assert refused.value.kind == "gang"
    pair[0].start("r-1", ["true"])
    assert pair[0].result("r-1")["outcome"] == "done"


def test_torchrun_on_two_nodes_where_one_rank_raises(pair: tuple[RealNode, RealNode], tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    port = pair[0].client().call("port", address="127.0.0.1").port
    argvs = tuple(
        [
            *[sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={index}"],
            *["--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}", "--rdzv-id=r-1-a0"],
            *["--max-restarts=0", "--log-dir={run}/torchrun", "--no-python"],
            *["{python}", "-I", "{agent}", "rank", "--node-run", "{run}", "--", sys.executable, str(script)],
        ]
        for index in range(2)
    )
    env = {"PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    gang = {"address": "127.0.0.1", "port": pair[0].client().call("port", address="127.0.0.1").port}
    for node, argv in zip(pair, argvs, strict=True):
        more = {"kind": "torchrun", "nodes": 2, "rank_base": node.index, "world": 2, "env": env}
        master = {"address": "127.0.0.1", "port": port}
        node.start("r-1", argv, secrets={}, secret="secret", master=master, gang=gang, **more)
    first, second = (node.result("r-1") for node in pair)
    assert second["outcome"] == "failed"
    [culprit] = second["ranks"]
    assert (culprit["rank"], culprit["local"]) == (1, 0)
    assert culprit["code"] == 1 or culprit["after_stop"]
    assert culprit["tail"].endswith("SystemError: rank 1 has had enough\n")
    assert first["outcome"] in ("stopped", "failed")
    assert [rank["rank"] for rank in first["ranks"]] == [0]
    assert pair[0].file("r-1", "ranks/0.out").startswith(b"ranks 2\n")
    assert [rank["joined"] for node in (first, second) for rank in node["ranks"]] == [True] * 2
