"""Logs and results of a run on a real node, brought home through a real conversation with its agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuops.core.errors import ConnectionLost
from gpuops.core.reporting import Silent
from gpuops.sync.download import DEFAULT_OUTS, fetch
from gpuops.sync.log_mirror import mirror
from gpuops.sync.run_folder import RunHome
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from tests.integration.agent.conftest import RealNode

TRAIN = """
import sys, time
from pathlib import Path
for step in range(200):
    print("step", step, "ü" * (step % 50))
    print("progress", step, end="\\r", file=sys.stderr)
    sys.stdout.flush()
    if step % 60 == 0:
        Path("snapshot.pt").write_text("step %d" % step)
    time.sleep(0.005)
Path("outputs").mkdir()
Path("outputs/last step.bin").write_bytes(bytes(3_000_000))
"""


def follow_with_cuts(node: RealNode, run: str, home: RunHome, every: int) -> tuple[dict[str, Any], int]:
    """Mirror to the end, ending the connection after each `every` pieces; the result, and how often."""
    cuts = 0
    while True:
        client = node.client()
        pieces = 0

        def cut_now(*_: Any, client: AgentClient = client) -> None:
            nonlocal pieces
            pieces += 1
            if pieces >= every:
                client.close()
                raise ConnectionLost("cut by this test")

        try:
            result = mirror(client, run, 0, home, True, cut_now)
            assert result is not None
            return result, cuts
        except ConnectionLost:
            cuts += 1
        finally:
            client.close()


def test_logs_and_results_of_a_real_run(node: RealNode, tmp_path: Path) -> None:
    home = RunHome(tmp_path / "laptop" / "runs" / "toy-1")
    node.start("toy-1", [sys.executable, "-c", TRAIN], outs=list(DEFAULT_OUTS))

    result, cuts = follow_with_cuts(node, "toy-1", home, every=2)
    client = node.client()
    report = fetch({0: client}, "toy-1", "project", DEFAULT_OUTS, home, final=True, progress=Silent())
    client.close()

    assert result["outcome"] == "done"
    assert cuts > 0
    for stream in ("launcher.out", "launcher.err", "events.jsonl"):
        assert home.log(0, stream).read_bytes() == node.file("toy-1", stream)
    assert home.log(0, "launcher.out").read_text().splitlines()[-1].startswith("step 199")
    assert (report.files, report.conflicts) == (2, ())
    assert (home.out / "snapshot.pt").read_text() == "step 180"
    assert (home.out / "outputs/last step.bin").read_bytes() == bytes(3_000_000)


def test_what_was_there_before_the_run_is_not_its_result(node: RealNode, tmp_path: Path) -> None:
    (node.folder / "project/outputs").mkdir(parents=True)
    (node.folder / "project/outputs/pushed.bin").write_bytes(b"pushed")
    node.python("toy-1", "open('outputs/made.bin', 'w').write('made')", outs=["outputs/"])
    node.result("toy-1")

    home, client = RunHome(tmp_path / "laptop" / "runs" / "toy-1"), node.client()
    fetch({0: client}, "toy-1", "project", ["outputs/"], home, final=True, progress=Silent())
    client.close()

    assert [path.name for path in (home.out / "outputs").iterdir()] == ["made.bin"]


def test_a_node_that_died_is_a_lost_connection(node: RealNode, tmp_path: Path) -> None:
    node.python("toy-1", "open('a.pt', 'w').write('made')")
    node.result("toy-1")
    client = node.client()
    node.end()
    with pytest.raises(ConnectionLost):
        fetch(
            {0: client},
            "toy-1",
            "project",
            ["*.pt"],
            RunHome(tmp_path / "runs" / "toy-1"),
            final=True,
            progress=Silent(),
        )
    client.close()
