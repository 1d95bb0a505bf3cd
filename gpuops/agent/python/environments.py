"""Environments with torch, made by pip or uv for a project, and the long commands that this takes.

An environment lies in `<root>/env/<name>/`, for every node of the root; its name is a hash of its content. Torch is
installed first, from its own index; the other requirements are then constrained to it. A command's output is passed on
as it comes, and the command is ended when its client disconnects.
"""

from __future__ import annotations

import fcntl
import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence, TextIO

from gpuops.agent.node import BEAT_INTERVAL_S, Emit, Node, Refusal, read_json, write_json
from gpuops.agent.python.interpreters import Interpreter, Spawn, probe_interpreter

POLL_INTERVAL_S = 0.5
TERM_GRACE_S = 5.0
PIPE_BYTES = 65536
STEP_TIMEOUT_S = 3600.0
"""Time limit of one step of making an environment: torch for CUDA is 2 to 3 GB."""
TORCH_FAMILY = re.compile(r"(?i)(torchvision|torchaudio)\b")
"""Built against one torch and one CUDA: installed from the same index as torch."""
MIN_TORCH_PYTHON = (3, 10)
"""The oldest Python that the current torch has wheels for; an older Python gets an older torch."""
REDIRECTING_VARIABLES = {
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_USER",
    "PIP_CONSTRAINT",
}
"""Variables that would lead pip to other folders, or to another torch."""
DEFAULT_VARIABLES = {"PIP_RETRIES": "2"}
"""For pip, unless the machine says otherwise: its usual five take minutes on a host without internet."""
RETRY_LINE = re.compile(r"WARNING: Retrying \(Retry\(")
NO_INDEX = "no package index answers"
INDEX_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
"""For pip, uv, and uv before 0.4.23. An index's URL may have a login in it, and every user sees command lines."""
EXTRA_INDEX_VARIABLES = {"PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX"}
MAX_KEPT_LINES = 20
MAX_LINE_CHARACTERS = 300


def run_streaming(
    argv: Sequence[str],
    on_output: Callable[[bytes], None],
    on_silence: Callable[[], None],
    spawn: Spawn,
    timeout_s: float | None = None,
    **popen: Any,
) -> int | None:
    """Run `argv` to its end. Returns its exit code (a signal's is negative); None where `timeout_s` ended it.

    `on_output` gets stdout and stderr as they come; `on_silence` is called every BEAT_INTERVAL_S without output. If
    either raises (the client has disconnected), the command and its process group are ended first. Processes that the
    command leaves in the background are not waited for.
    """
    process = spawn(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **popen,
    )
    try:
        return _pump_output(process, on_output, on_silence, timeout_s)
    finally:
        if process.poll() is None:
            _terminate_group(process)
        assert process.stdout
        process.stdout.close()


def _pump_output(
    process: subprocess.Popen[bytes],
    on_output: Callable[[bytes], None],
    on_silence: Callable[[], None],
    timeout_s: float | None,
) -> int | None:
    started = last_output = time.monotonic()
    assert process.stdout
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ended = process.poll()
            if selector.get_map() and selector.select(0 if ended is not None else POLL_INTERVAL_S):
                # After the end one read empties the pipe; a daemon left behind may write for ever.
                chunk = os.read(process.stdout.fileno(), PIPE_BYTES)
                if chunk:
                    on_output(chunk)
                    last_output = time.monotonic()
                else:
                    selector.unregister(process.stdout)
            elif ended is None and not selector.get_map():
                _wait_briefly(process)
            if ended is not None:
                return ended
            now = time.monotonic()
            if timeout_s is not None and now - started > timeout_s:
                return None
            if now - last_output >= BEAT_INTERVAL_S:
                on_silence()
                last_output = now


def _wait_briefly(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(POLL_INTERVAL_S)
    except subprocess.TimeoutExpired:
        pass  # it has closed its output and goes on


def _terminate_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, then SIGKILL, to the command and its group."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(TERM_GRACE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


class EnvironmentPlan(NamedTuple):
    """The protocol's `make`: requirement lines without torch, torch's requirement, its index ("": the usual one)."""

    requirements: Sequence[str]
    torch: str
    index_url: str
    name: str


def parse_plan(make: Mapping[str, Any]) -> EnvironmentPlan:
    """Parse the argument `make` of verb `python`. Raises Refusal(`bad-request`)."""
    name = str(make["name"])
    if not re.fullmatch(r"[0-9a-z]{1,64}", name):
        raise Refusal("bad-request", f"'{name}' is not an environment's name")
    return EnvironmentPlan(list(make["requirements"]), str(make["torch"]), str(make["index"]), name)


def environment_folder(node: Node, name: str) -> str:
    return os.path.join(node.root, "env", name)


def environment_python(env: str) -> str:
    return os.path.join(env, "bin", "python")


def list_environments(node: Node) -> list[str]:
    """Names of the environments made here, newest first."""
    try:
        names = os.listdir(os.path.join(node.root, "env"))
    except OSError:
        return []
    made = {name: read_json(os.path.join(environment_folder(node, name), "done")) for name in names}
    return sorted((name for name in made if made[name]), key=lambda name: -float(made[name]["at"]))


def ensure_environment(
    node: Node, plan: EnvironmentPlan, known: Sequence[Interpreter], emit: Emit, spawn: Spawn
) -> Interpreter:
    """The Python of the planned environment, which is created unless it exists. Raises Refusal(`make-failed`)."""
    env = environment_folder(node, plan.name)
    os.makedirs(os.path.dirname(env), mode=0o700, exist_ok=True)
    with _environment_lock(env + ".lock", emit):
        existing = probe_interpreter(environment_python(env), spawn) if plan.name in list_environments(node) else None
        if existing and existing.torch:
            return existing
        shutil.rmtree(env, ignore_errors=True)
        try:
            made = _create_environment(env, plan, known, emit, spawn)
        except BaseException:  # also where the client has disconnected: an incomplete environment is removed
            shutil.rmtree(env, ignore_errors=True)
            raise
        write_json(os.path.join(env, "done"), {"name": plan.name, "at": time.time(), "torch": made.torch})
        return made


@contextmanager
def _environment_lock(path: str, emit: Emit) -> Iterator[None]:
    """Lock the file at `path`, so that one request at a time creates the environment.

    While it waits it says so, then emits beats; `emit` ends the wait of a client that has disconnected.
    """
    with open(path, "w", encoding="utf-8") as lock:
        item: dict[str, Any] = {"say": "waiting for the environment that is being made already"}
        next_item = time.monotonic()
        while not _try_lock(lock):
            if time.monotonic() >= next_item:
                emit(item)
                item, next_item = {"beat": time.time()}, time.monotonic() + BEAT_INTERVAL_S
            time.sleep(POLL_INTERVAL_S)
        yield


def _try_lock(file: TextIO) -> bool:
    """Lock a file unless another has it locked. Raises OSError where the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _create_environment(
    env: str, plan: EnvironmentPlan, known: Sequence[Interpreter], emit: Emit, spawn: Spawn
) -> Interpreter:
    uv = uv_command(known, os.environ)
    base = choose_base(known, bool(uv))
    emit({"say": f"with {base.path}"})  # venv says nothing, and may take a minute
    # Its own pip, too: without one, `pip` in a set-up command would be the system's.
    create = [*uv, "venv", "--seed", "--python", base.path, env] if uv else [base.path, "-m", "venv", env]
    install = _install_command(uv, env)
    _run_step(create, emit, spawn)
    family = [line for line in plan.requirements if TORCH_FAMILY.match(line)]
    _run_step([*install, plan.torch, *family], emit, spawn, plan.index_url)
    made = probe_interpreter(environment_python(env), spawn)
    if made is None or made.torch is None:
        raise Refusal(
            "make-failed",
            f"the new environment has no torch, although '{plan.torch}' was installed",
            "check GPUOPS_TORCH_SPEC and GPUOPS_TORCH_INDEX",
        )
    rest = [line for line in plan.requirements if not TORCH_FAMILY.match(line)]
    if rest:
        constraint = write_lines(os.path.join(env, "constraint.txt"), ["torch==" + made.torch])
        listed = write_lines(os.path.join(env, "requirements.txt"), rest)
        _run_step([*install, "--constraint", constraint, "--requirement", listed], emit, spawn)
    return made


def write_lines(path: str, lines: Sequence[str]) -> str:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    return path


def _install_command(uv: Sequence[str], env: str) -> list[str]:
    if uv:
        return [*uv, "pip", "install", "--python", environment_python(env)]
    return [
        environment_python(env),
        "-m",
        "pip",
        "install",
        "--no-input",
        "--progress-bar=off",
        "--disable-pip-version-check",
    ]


def uv_command(known: Sequence[Interpreter], environ: Mapping[str, str]) -> list[str]:
    """The command that starts uv; [] where it is not installed."""
    home = environ.get("HOME") or os.path.expanduser("~")
    on_path = shutil.which("uv", path=environ.get("PATH", os.defpath))
    programs = [on_path, os.path.join(home, ".local/bin/uv"), os.path.join(home, ".cargo/bin/uv")]
    for program in programs:
        if program and os.access(program, os.X_OK):
            return [program]
    return next(([python.path, "-m", "uv"] for python in known if python.uv), [])


def choose_base(known: Sequence[Interpreter], have_uv: bool) -> Interpreter:
    """The Python to make an environment from: the first that the current torch supports, else the first.

    Raises Refusal(`make-failed`) where none can make environments.
    """
    able = [python for python in known if have_uv or python.ensurepip]
    if not able:
        raise Refusal(
            "make-failed",
            "no Python on this node has torch, and none can make an environment",
            "`apt-get install python3-venv` on the node, or install uv there",
        )
    return next((python for python in able if python.version >= MIN_TORCH_PYTHON), able[0])


def _run_step(argv: Sequence[str], emit: Emit, spawn: Spawn, index_url: str = "") -> None:
    """Run one command and pass its lines on as `say`. `index_url`: the one index that it asks; "": the usual ones.

    Raises Refusal(`make-failed`) with its last lines.
    """
    lines = LineReporter(emit)
    without = REDIRECTING_VARIABLES | EXTRA_INDEX_VARIABLES if index_url else REDIRECTING_VARIABLES
    environment = {**DEFAULT_VARIABLES, **{name: value for name, value in os.environ.items() if name not in without}}
    if index_url:
        environment.update(dict.fromkeys(INDEX_VARIABLES, index_url))
    try:
        code = run_streaming(
            argv, lines.feed, lambda: emit({"beat": time.time()}), spawn, STEP_TIMEOUT_S, env=environment
        )
    except OSError as error:
        code = 126
        lines.feed(f"{argv[0]} cannot be started: {error.strerror}\n".encode())
    if code == 0:
        return
    what = f"a step took longer than {STEP_TIMEOUT_S / 60:.0f} minutes" if code is None else lines.error_line()
    raise Refusal(
        "make-failed",
        f"an environment with torch could not be made: {what}",
        f"check that the node reaches {_without_login(index_url) or 'the package index'}, name another index (export "
        "GPUOPS_TORCH_INDEX=URL), or a Python that has torch with --python",
        tail=lines.last,
    )


def _without_login(url: str) -> str:
    return re.sub(r"//[^/]*@", "//", url)


class LineReporter:
    """Emits output line by line, and keeps the last MAX_KEPT_LINES lines for an error message.

    pip's lines about another try are one sentence, said once.
    """

    def __init__(self, emit: Emit) -> None:
        self.last: list[str] = []
        self.has_retried = False
        self._emit = emit
        self._part = b""

    def feed(self, chunk: bytes) -> None:
        *whole, self._part = re.split(rb"[\r\n]+", self._part + chunk)
        for line in whole:
            text = line.decode("utf-8", "replace").strip()[:MAX_LINE_CHARACTERS]
            if RETRY_LINE.match(text):
                self._report_retry()
            elif text:
                self.last = [*self.last[1 - MAX_KEPT_LINES :], text]
                self._emit({"say": text})

    def _report_retry(self) -> None:
        if not self.has_retried:
            self.has_retried = True
            self._emit({"say": f"{NO_INDEX}; trying on (this host has no internet? --python PATH)"})

    def error_line(self) -> str:
        """The line that explains a failure best: the last that begins with `error`, else the last."""
        if self._part:
            self.feed(b"\n")
        errors = [line for line in self.last if re.match(r"(?i)error\b", line)]
        line = (errors or self.last or ["no reason was given"])[-1]
        # Where a file of constraints names what is missing, too, pip speaks of a conflict.
        nothing_found = "No matching distribution" in line or "ResolutionImpossible" in line
        return f"{NO_INDEX}: {line}" if self.has_retried and nothing_found else line
