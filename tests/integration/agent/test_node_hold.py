"""A node on a machine of a batch job: one process holds it, in the foreground, and hears of the job's end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.process_table import descendants, list_processes
from gpuops.core.errors import NodeRefused
from gpuops.transport.rpc import AgentClient
from tests.integration.agent.conftest import HANG_S, PYTHON, RealNode, alive, until

SAVES = """
import os, time
print("at work", flush=True)
while not os.path.exists(os.environ["GPUOPS_STOP_FILE"]):
    time.sleep(0.02)
open("last.pt", "w").close()
"""
JOB = {"by": "Slurm", "boot_in": 600.0, "ends_in": 3600.0, "kill_wait_s": 30.0}


class Held:
    """A node, and the process that holds it; its machine's own files are in `local`."""

    def __init__(self, node: RealNode, local: Path, job: dict[str, Any]) -> None:
        self.node = node
        self.local = local
        local.mkdir()
        command = ["hold", "--cluster", str(node.folder.parent), "--job", "t"]
        self._argv = [PYTHON, "-I", str(node.artefact), *command]
        settings = {"cluster": node.cluster, "index": node.index, "token": "t-0", "end": None, "job": job}
        made = subprocess.run([*self._argv, "--prepare"], input=json.dumps({"nodes": [settings]}), text=True,
                              capture_output=True, timeout=HANG_S)  # fmt: skip
        assert made.stdout == '{"prepared": 1}\n', made.stderr

    def start(self, **env: str) -> subprocess.Popen[bytes]:
        surroundings = {**os.environ, "SLURM_NODEID": str(self.node.index), "TMPDIR": str(self.local), **env}
        process = subprocess.Popen(self._argv, env=surroundings, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until(lambda: "held" in self.settings() or process.poll() is not None, "it is held")
        self.node.process("watchdog")
        return process

    def refusal(self, *words: str) -> str:
        """What it says where it holds nothing."""
        environ = {**os.environ, "SLURM_NODEID": str(self.node.index), "TMPDIR": str(self.local)}
        done = subprocess.run([*self._argv, *words], env=environ, capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 1
        return done.stderr

    def settings(self) -> dict[str, Any]:
        return dict(json.loads((self.node.folder / "node.json").read_text()))

    def ended(self) -> str:
        return str(json.loads((self.node.folder / "ended.json").read_text())["why"])


@pytest.fixture
def held(make_node: Callable[..., RealNode], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Held]:
    """Its parameter: more of what its job is."""
    one = Held(make_node(init=False), tmp_path / "local", {**JOB, **getattr(request, "param", {})})
    yield one
    assert list(one.local.iterdir()) == []


@pytest.mark.parametrize(("visible", "gpus"), [("2,5", ["2", "5"]), ("GPU-0a1b", None), ("", None)])
def test_what_a_job_was_given(held: Held, visible: str, gpus: list[str] | None) -> None:
    process = held.start(CUDA_VISIBLE_DEVICES=visible, SLURMD_NODENAME="c7")
    assert (held.settings()["held"], held.settings()["gpus"], held.settings()["token"]) == ("c7", gpus, "t-0")
    lease = held.node.says("hello")["ok"]["lease"]
    assert 3500 < lease["hard_wall"] - lease["boot_wall"] + 600 < 3700, "both count from the job's start"
    assert held.node.end()["left"] == 0
    assert process.wait(HANG_S) == 0, "it ends with its node"


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGUSR1])
def test_a_job_that_ends_stops_its_run_with_a_snapshot(held: Held, sign: signal.Signals) -> None:
    process = held.start()
    held.node.start("r-1", [sys.executable, "-c", SAVES])
    until(lambda: b"at work" in held.node.file("r-1", "launcher.out"), "the run is at work")
    os.kill(held.node.process("watchdog"), signal.SIGTERM)  # some batch systems signal every process
    process.send_signal(sign)
    assert process.wait(HANG_S) == 0
    result = held.node.result("r-1")
    assert (result["outcome"], result["reason"]["kind"], result["reason"]["by"]) == ("stopped", "reclaim", "Slurm")
    assert (held.node.folder / "project/last.pt").exists()
    assert held.ended() == "the batch system took its machine back"


@pytest.mark.parametrize("held", [{"apart": True}], indirect=True)
def test_a_signal_to_all_that_a_job_has_started_reaches_nothing_of_a_run(held: Held) -> None:
    """Some batch systems know a job's processes by their parents."""
    process = held.start()
    assert descendants(list_processes(), [process.pid]) == set()
    process.terminate()
    assert process.wait(HANG_S) == 0
    assert held.ended() == "the batch system took its machine back"


def test_what_has_ended_is_read_and_nothing_else(held: Held) -> None:
    process = held.start()
    held.node.start("r-1", [sys.executable, "-c", SAVES])
    process.terminate()
    process.wait(HANG_S)
    client = AgentClient(held.node.connection, held.node.paths)
    assert [file[0] for file in client.call("outs", run="r-1", patterns=["*.pt"]).files] == ["last.pt"]
    assert client.call("run", run="r-1").result is not None
    for verb in ("hello", "start"):
        with pytest.raises(NodeRefused, match="this node has ended: the batch system took its machine back"):
            client.call(verb)
    client.close()


def test_its_node_ends_where_what_holds_it_is_killed(held: Held) -> None:
    """A batch system that does not track processes would leave them all."""
    process = held.start()
    held.node.start("r-1", [sys.executable, "-c", SAVES])
    watchdog, agent = held.node.process("watchdog"), held.node.process("agent")
    process.kill()
    process.wait(HANG_S)
    until(lambda: not alive(watchdog) and not alive(agent), "the node has ended")
    assert held.ended() == "what held this machine for its batch job was killed"
    assert held.node.result("r-1")["outcome"] in ("stopped", "lost")


def test_a_conversation_ends_where_its_client_is_silent(held: Held) -> None:
    """Whose srun was killed is told of no end; an empty line is a sign of life."""
    process = held.start()
    words = held.node.paths.argv("connect", "--silence", "1.5")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as connect:
        assert connect.stdin
        assert connect.stdout
        assert connect.stdout.readline() == b"gpuops-agent 1\n"
        for _ in range(4):
            connect.stdin.write(b"\n")
            connect.stdin.flush()
            time.sleep(0.5)
        assert connect.poll() is None
        assert connect.wait(HANG_S) == 0
    assert held.node.end()["left"] == 0
    assert process.wait(HANG_S) == 0


def test_a_machine_with_another_home_says_so(held: Held) -> None:
    (held.node.folder / "node.json").unlink()
    assert "this machine has another home folder than the login node" in held.refusal()


def test_a_job_that_begins_late_holds_no_node_of_the_next_one(held: Held) -> None:
    """A cluster's name may be taken again while a job that was given up still waits in the queue."""
    before = held.settings()
    assert "this job is not the one that this node of lab was made for" in held.refusal("--job", "s")
    assert held.settings() == before


def test_a_node_is_held_once(held: Held) -> None:
    """A job may have been submitted twice under its name, or be begun again by who runs the cluster."""
    process = held.start(SLURMD_NODENAME="c7")
    before = held.settings()
    assert "this node of lab is held by c7 already" in held.refusal()
    assert held.settings() == before
    assert held.node.says("hello")["ok"]
    assert held.node.end()["left"] == 0
    assert process.wait(HANG_S) == 0


def test_a_job_whose_node_has_ended_leaves_nothing_on_its_machine(held: Held) -> None:
    (held.node.folder / "ended.json").write_text('{"why": "it was ended"}')
    assert "this node has ended: it was ended" in held.refusal()
