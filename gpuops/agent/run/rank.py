"""Mode `rank`: runs the script for torchrun, stores its output byte for byte, and records how it ended.

torchrun reports little (every failure is exit code 1), and what it knows is lost when it is killed. This process only
has to outlive the script by one file.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Mapping, Sequence

from gpuops.agent import processes
from gpuops.agent.node import Refusal, open_append, read_json, write_json
from gpuops.agent.run.command_and_environment import with_prelude
from gpuops.agent.run_documents import LaunchSpec, RankRecord

SIGNAL_DELAY_S = 1.0
"""When one rank fails, torchrun signals all others at once, and the failing one too if it is slow to exit.
This delay lets it exit in its own way, so that the record says what happened."""
COMMAND_NOT_STARTED = 127


def main(_mode: str, arguments: Sequence[str]) -> int:
    """`--node-run RUN -- CMD…`; exits exactly as CMD does."""
    folder, command = parse_arguments(arguments)
    # The agent signals the script directly. Handlers rather than SIG_IGN, which the script would inherit.
    early: list[int] = []
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(sign, lambda number, _: early.append(number))
    record = run_script(folder, command, os.environ, early)
    return exit_like(record.code, record.signal)


def parse_arguments(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The run's folder and the command. Raises Refusal(`usage`)."""
    if len(arguments) < 4 or arguments[0] != "--node-run" or arguments[2] != "--":
        raise Refusal("usage", "rank needs --node-run RUN -- COMMAND", "it is started by torchrun")
    return arguments[1], list(arguments[3:])


def run_script(folder: str, command: Sequence[str], env: Mapping[str, str], early: Sequence[int] = ()) -> RankRecord:
    """Run the command to its end. Returns its record, which is then in `ranks/<rank>.json`.

    `early` collects the signals received before `pass_on_late`: they are passed on then.
    """
    rank = int(env["RANK"])
    base = os.path.join(folder, "ranks", str(rank))
    spec = LaunchSpec.parse({"run": "", **(read_json(os.path.join(folder, "spec.json")) or {})})
    kills = oom_kills()
    record = RankRecord(rank, int(env.get("LOCAL_RANK", rank)), os.getpid(), started=time.time())
    with open_append(base + ".out") as out, open_append(base + ".err") as errors:
        try:
            process = subprocess.Popen(
                with_prelude(spec.prelude, command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                preexec_fn=_die_with(os.getpid()),
            )
            pass_on_late(process.pid, early)
            record = record._replace(pid=process.pid)
            _write_record(base + ".json", record)
            code = process.wait()
        except OSError as error:
            errors.write((f"gpuops: cannot start {command[0]}: {error.strerror}\n").encode())
            code = COMMAND_NOT_STARTED
    record = record._replace(
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        ended=time.time(),
        oom=code == -signal.SIGKILL and oom_kills() > kills,
        error=read_json(env["TORCHELASTIC_ERROR_FILE"]) if env.get("TORCHELASTIC_ERROR_FILE") else None,
    )
    _write_record(base + ".json", record)
    return record


def _write_record(path: str, record: RankRecord) -> None:
    try:
        write_json(path, record._asdict())
    except OSError:
        pass  # a full disk, on which a message finds no room either: torchrun still learns how the script ended


def pass_on_late(group: int, early: Sequence[int]) -> None:
    """Pass torchrun's SIGTERM and SIGINT, also `early` ones, on to the script's process group after SIGNAL_DELAY_S."""

    def later(sign: int, _frame: Any) -> None:
        signal.signal(signal.SIGALRM, lambda *_: _signal_group(group, sign))
        signal.setitimer(signal.ITIMER_REAL, SIGNAL_DELAY_S)

    signal.signal(signal.SIGTERM, later)
    signal.signal(signal.SIGINT, later)
    for sign in early:
        if sign != signal.SIGUSR1:
            later(sign, None)


def _signal_group(group: int, sign: int) -> None:
    try:
        os.killpg(group, sign)
    except ProcessLookupError:
        pass  # it has exited by itself


def exit_like(code: int | None, sign: int | None) -> int:
    """End this process as the script ended: by the same signal, else with the exit code that is returned."""
    sys.stdout.flush()
    if sign is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sign not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(sign, signal.SIG_DFL)
        os.kill(os.getpid(), sign)
    return 128 + sign if sign is not None else code or 0


def oom_kills() -> int:
    """How many processes the kernel has killed for memory: in this cgroup if it counts them, else on the machine."""
    for path in _memory_events():
        count = _counter(path, "oom_kill")
        if count is not None:
            return count
    return _counter("/proc/vmstat", "oom_kill") or 0


def _memory_events() -> list[str]:
    """Files with this cgroup's counters, of cgroup v2 or v1."""
    paths = []
    try:
        with open("/proc/self/cgroup") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if not controllers:
                    paths.append("/sys/fs/cgroup" + path.rstrip("/") + "/memory.events")
                elif "memory" in controllers.split(","):
                    paths.append("/sys/fs/cgroup/memory" + path.rstrip("/") + "/memory.oom_control")
    except (OSError, ValueError):
        return []
    return paths


def _counter(path: str, name: str) -> int | None:
    """The number in the file's line `NAME NUMBER`."""
    try:
        with open(path) as file:
            return next((int(line.split()[1]) for line in file if line.split()[:1] == [name]), None)
    except (OSError, ValueError):
        return None


def _die_with(parent: int) -> Callable[[], None]:
    """Runs in the child before its program: gives it a process group of its own, and kills it when its wrapper dies."""
    import ctypes  # noqa: F401 - which `die_with_parent` needs: not to be loaded between fork and exec

    def prepare() -> None:
        os.setpgid(0, 0)  # torchrun signals the wrapper's group
        processes.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare
