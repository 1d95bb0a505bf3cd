"""What a push of 10,000 small files to a host costs, beside rsync to the same host in the same minute.

    python benchmarks/push.py

A real sshd on loopback, as the current user. Prints seconds, the median of five, each after one that does not count:
the whole command (`gpuops push`, start of Python included), the push alone (an open connection), and
`rsync -a` over the system's ssh, with a new login and with one that is open.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpuops import cluster, push
from gpuops.ledger import Ledger
from gpuops.output import Output
from gpuops.progress import Silent
from gpuops.settings import owner
from gpuops.signals import Signals
from gpuops.world import World
from tests.ssh.sshd import Sshd, can_serve

FILES, FOLDERS, SIZE, ROUNDS = 10_000, 100, 4050, 5


def main() -> int:
    if why := can_serve():
        print(why, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="gpuops-bench-") as name:
        folder = Path(name)
        project = make_tree(folder / "project")
        server = Sshd(folder / "sshd")
        try:
            table(folder, project, server)
        finally:
            server.stop()
    return 0


def make_tree(folder: Path) -> Path:
    for index in range(FILES):
        path = folder / f"d{index % FOLDERS}" / f"f{index}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(SIZE))
    return folder


def table(folder: Path, project: Path, server: Sshd) -> None:
    env = {**os.environ, "GPUOPS_HOME": str(folder / "h")}
    where = ["--host", f"{server.user}@127.0.0.1:{server.port}", "--identity", str(server.identity), "--accept-new"]

    def typed(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "gpuops", *words], cwd=project, env=env, check=True, capture_output=True)

    typed("up", "ssh", "--name", "bench", *where)
    rows = {"gpuops push, first": timed(lambda: typed("push"))}
    rows["gpuops push, unchanged"] = median(lambda: typed("push"))
    home = folder / "h"
    world = World(home, owner(home), project, env, Output(), Signals())
    (row,) = Ledger.open(home).clusters()
    live = cluster.open_live(world, row)

    def alone() -> None:
        push.push_many(live.clients, "project", push.scan(project, home / "cache"), progress=Silent())

    rows["the push alone, unchanged"] = median(alone)
    live.close()
    ssh = f"ssh -F /dev/null -p {server.port} -i {server.identity} -o StrictHostKeyChecking=no"
    ssh += " -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    master = f"{ssh} -o ControlMaster=auto -o ControlPath={folder}/c -o ControlPersist=60"
    target = f"{server.user}@127.0.0.1:{folder}/copy/"

    def rsync(shell: str) -> None:
        subprocess.run(
            ["rsync", "-a", "--delete", "-e", shell, f"{project}/", target], check=True, stdin=subprocess.DEVNULL
        )

    rows["rsync, first"] = timed(lambda: rsync(ssh))
    rows["rsync, unchanged"] = median(lambda: rsync(ssh))
    rows["rsync, unchanged, login open"] = median(lambda: rsync(master))
    typed("down", "bench")
    for what, seconds in rows.items():
        print(f"{what:<30}{seconds:8.2f} s")


def timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(work: Callable[[], None]) -> float:
    return statistics.median([timed(work) for _ in range(ROUNDS + 1)][1:])


if __name__ == "__main__":
    sys.exit(main())
