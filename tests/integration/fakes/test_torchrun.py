"""The stand-in for torchrun beside the real one: the same variables for each rank, the same exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG_S, TESTS, until
from tests.ports import free_port

STUB, REAL = str(TESTS / "fakes" / "torchrun"), ""
TELLS = """
import json, os, pathlib, sys
others = ("MASTER_ADDR", "ROLE_NAME", "OMP_NUM_THREADS")
names = [n for n in os.environ if n.startswith("TORCH") or "RANK" in n or "WORLD" in n or n in others]
told = {n: os.environ[n] for n in names if n != "TORCHELASTIC_ERROR_FILE"}
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(told))
assert os.path.isdir(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"]))
"""


def torchrun(path: str, folder: Path, node: int, port: int, *command: str, ranks: int = 2) -> subprocess.Popen[bytes]:
    """One of two nodes, started as gpuops starts it (gpuops/runs/launch_spec.py)."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}",
         f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1", f"--master-port={port}", "--rdzv-id=one",
         "--rdzv-conf=timeout=600", "--max-restarts=0", f"--log-dir={folder / 'elastic'}", "--no-python", *command],
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def test_ranks_read_what_the_real_one_tells_them(tmp_path: Path) -> None:
    told = {}
    for path in (REAL, STUB):
        folder = tmp_path / f"of{len(path)}"
        folder.mkdir()
        port = free_port()
        words = [sys.executable, "-c", TELLS, str(folder)]
        nodes = [torchrun(path, folder, node, port, *words) for node in (0, 1)]
        assert [node.wait(HANG_S) for node in nodes] == [0, 0]
        told[path] = {rank: json.loads((folder / str(rank)).read_text()) for rank in range(4)}
    assert told[STUB] == told[REAL]


def test_a_rank_that_fails_ends_the_others_of_its_node(tmp_path: Path) -> None:
    script = "[ $RANK != 0 ] || exit 3; sleep 600"
    port = free_port()
    first, second = (torchrun(STUB, tmp_path, node, port, "sh", "-c", script) for node in (0, 1))
    assert first.wait(HANG_S) == 1
    second.terminate()
    assert second.wait(HANG_S) == 1


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_to_its_ranks(tmp_path: Path, sign: signal.Signals) -> None:
    script = (
        f"trap 'touch {tmp_path}/heard-$RANK; exit 0' TERM INT; touch {tmp_path}/up-$RANK; while :; do sleep 0.1; done"
    )
    port = free_port()
    nodes = [torchrun(STUB, tmp_path, node, port, "sh", "-c", script, ranks=1) for node in (0, 1)]
    for rank in (0, 1):
        until((tmp_path / f"up-{rank}").exists, "both ranks")
    for rank, node in enumerate(nodes):
        node.send_signal(sign)
        node.wait(HANG_S)
        assert (tmp_path / f"heard-{rank}").exists()
