"""Real launches of the programs under train/, each in a folder of the test's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

TRAIN = Path(__file__).parents[2] / "train"
HANG_S = 200.0
"""A launch that takes longer hangs; seconds."""


def environment() -> dict[str, str]:
    """This one, without what an outer torchrun or a GPU would add: a world is made of processes of one thread."""
    left_out = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}


class Launch:
    """A program under way; its streams go to files, so that they can be looked at while it runs."""

    def __init__(self, argv: Sequence[str], cwd: Path, streams: Path) -> None:
        self.out, self.err = streams / "out", streams / "err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(argv, cwd=cwd, env=environment(), stdout=out, stderr=err)

    def wait_for_output(self) -> None:
        """Until it has printed something: every rank has joined the world by then."""
        deadline = time.monotonic() + HANG_S
        while not self.out.stat().st_size:
            assert self.process.poll() is None, self.err.read_text()
            assert time.monotonic() < deadline, "it has not printed anything"
            time.sleep(0.05)

    def tell_rank(self, rank: int, number: signal.Signals) -> None:
        """A signal to one rank alone, as gpuops sends it."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        [process] = [child for child in children if child.environ().get("RANK") == str(rank)]
        process.send_signal(number)

    def finish(self) -> tuple[int, list[str], str]:
        """Exit code, lines of stdout, stderr."""
        code = self.process.wait(timeout=HANG_S)
        return code, self.out.read_text().splitlines(), self.err.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            me = psutil.Process(self.process.pid)
            for process in [*me.children(recursive=True), me]:
                process.kill()
            self.process.wait()


@pytest.fixture
def start(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Launch]]:
    """`start(program, *arguments, ranks=0, options=…, cwd=tmp_path)`; what is left afterwards is ended.

    `ranks=0` is plain python, any other number is torchrun's.
    """
    started: list[Launch] = []

    def launch(
        program: str, *arguments: str, ranks: int = 0, options: Sequence[str] = ("--standalone",), cwd: Path = tmp_path
    ) -> Launch:
        launcher = ["-m", "torch.distributed.run", *options, f"--nproc-per-node={ranks}"] if ranks else []
        argv = [sys.executable, *launcher, str(TRAIN / program), *arguments]
        started.append(Launch(argv, cwd, tmp_path_factory.mktemp("streams")))
        return started[-1]

    yield launch
    for launched in started:
        launched.end()


@pytest.fixture
def launch(start: Callable[..., Launch]) -> Callable[..., tuple[int, list[str], str]]:
    """`start` and `finish` in one."""
    return lambda *arguments, **options: start(*arguments, **options).finish()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
