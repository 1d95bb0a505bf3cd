"""Real launches of the programs under train/, each in a folder of the test's own.

`launch` and `start` are real launchers: plain python, torchrun. `world` forks the ranks from a process that has torch
already, since importing it takes longer than all that the ranks do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import ports

TRAIN = Path(__file__).parents[3] / "train"
PROGRAMS = Path(__file__).parent / "programs"
MEASURING = TRAIN.parent / "benchmarks" / "programs"
sys.path.append(str(TRAIN))  # the parts, for tests that look at them alone
HANG_S = 600.0
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
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):  # what a rank asks something of has ended meanwhile
                if child.environ().get("RANK") == str(rank) and child.ppid() == self.process.pid:
                    found.append(child)
        [process] = found
        process.send_signal(number)

    def finish(self) -> tuple[int, list[str], str]:
        """Exit code, lines of stdout, stderr."""
        code = self.process.wait(timeout=HANG_S)
        return code, self.out.read_text().splitlines(), self.err.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            me = psutil.Process(self.process.pid)
            for process in [*me.children(recursive=True), me]:
                with suppress(psutil.NoSuchProcess):  # it ends just now
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
    return ports.free_port()


class Forks:
    """Ranks of one machine, or of several that share it, forked from one process (forks.py)."""

    def __init__(self) -> None:
        argv = [sys.executable, str(Path(__file__).with_name("forks.py"))]
        pipe = subprocess.PIPE
        self.server = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=environment(), text=True)
        self.living: set[int] = set()

    def ask(self, request: dict[str, Any]) -> Any:
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def start(self, ranks: list[dict[str, Any]]) -> list[int]:
        pids: list[int] = self.ask({"start": ranks})
        self.living |= set(pids)
        return pids

    def wait(self, pid: int) -> int:
        """The exit code; minus the number of the signal that ended it."""
        process, guard = psutil.Process(pid), time.monotonic() + HANG_S
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < guard:
            time.sleep(0.01)
        if process.status() != psutil.STATUS_ZOMBIE:
            process.kill()
            pytest.fail("a rank hangs")
        self.living.discard(pid)
        return int(self.ask({"wait": pid}))

    def kill(self) -> None:
        """All ranks that are left, at once."""
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)
        for pid in list(self.living):
            self.wait(pid)


class Ranks:
    """A world under way."""

    def __init__(self, forks: Forks, pids: list[int], out: list[Path], err: list[Path]) -> None:
        self.forks, self.pids, self._out, self._err = forks, pids, out, err

    def out(self, rank: int = 0) -> list[str]:
        return self._out[rank].read_text().splitlines()

    def err(self, rank: int = 0) -> str:
        return self._err[rank].read_text()

    def wait_for(self, words: str) -> None:
        guard = time.monotonic() + HANG_S
        while words not in self._out[0].read_text():
            assert time.monotonic() < guard, f"it has not said: {words}"
            time.sleep(0.01)

    def outlives(self, seconds: float) -> bool:
        """Whether they are still at work after so long."""
        time.sleep(seconds)
        return all(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in self.pids)

    def tell(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pids[rank], number)

    def finish(self) -> Ranks:
        self.codes = [self.forks.wait(pid) for pid in self.pids]
        return self

    def succeed(self) -> Ranks:
        self.finish()
        assert set(self.codes) == {0}, "".join(self.err(rank) for rank in range(len(self.pids)))
        return self

    def die(self) -> Ranks:
        """Wait until one of them has been killed, then kill the others, as a launcher does."""
        guard = time.monotonic() + HANG_S
        while all(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in self.pids):
            assert time.monotonic() < guard, "nobody was killed"
            time.sleep(0.01)
        self.forks.kill()
        return self

    def refusal(self) -> str:
        """The one sentence: on rank 0 only, while all leave with exit code 1."""
        self.finish()
        assert set(self.codes) == {1}, self.codes
        assert {self.err(rank) for rank in range(1, len(self.pids))} <= {""}
        [sentence] = [line for line in self.err().splitlines() if not line.startswith("training on ")]
        return sentence


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.kill()
    assert forks.server.stdin
    forks.server.stdin.close()
    forks.server.wait(timeout=HANG_S)


@pytest.fixture
def world(forks: Forks, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Ranks]]:
    """`world(program, *arguments, ranks=1, cwd=tmp_path, cwds=…)`; `cwds`: a folder for each rank, as on nodes."""

    def start(
        program: str, *arguments: str, ranks: int = 1, cwd: Path = tmp_path, cwds: Sequence[Path] = (), **env: str
    ) -> Ranks:
        path = next(folder / program for folder in (TRAIN, PROGRAMS, MEASURING) if (folder / program).exists())
        streams = tmp_path_factory.mktemp("streams")
        out, err = ([streams / f"{name}{rank}" for rank in range(ranks)] for name in ("out", "err"))
        for file in (*out, *err):
            file.touch()
        each = cwds or [cwd] * ranks
        common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": str(ports.free_port()), "GLOO_SOCKET_IFNAME": "lo", **env}  # fmt: skip
        wanted = [
            {"argv": [str(path), *arguments], "cwd": str(each[rank]), "out": str(out[rank]), "err": str(err[rank]),
             "env": {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}}
            for rank in range(ranks)
        ]  # fmt: skip
        return Ranks(forks, forks.start(wanted), out, err)

    yield start
    forks.kill()
