"""A long command of the agent's own, its output passed on as it comes, ended when nobody waits for it."""

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
from typing import Any, Callable, Collection, Iterator, Mapping, NamedTuple, Sequence

from gpuops.agent.node import Node, Refusal, read_json, write_json
from gpuops.agent.python.interpreters import Interpreter, Spawn, look

LOOK_EVERY_S = 0.5
BEAT_S = 5.0
"""How often `beat` is called while the command is silent, in seconds."""
GRACE_S = 5.0


def run(
    argv: Sequence[str],
    take: Callable[[bytes], None],
    beat: Callable[[], None],
    spawn: Spawn,
    limit_s: float | None = None,
    **popen: Any,
) -> int | None:
    """Run `argv` to its end; its exit code (a signal's is negative), or None when `limit_s` ended it.

    `take` gets stdout and stderr as they come. When `take` or `beat` raises (the client is gone),
    the command and what it started are ended first. What it leaves in the background is not waited for.
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
        return _follow(process, take, beat, limit_s)
    finally:
        if process.poll() is None:
            _end(process)
        assert process.stdout
        process.stdout.close()


def _follow(
    process: subprocess.Popen[bytes], take: Callable[[bytes], None], beat: Callable[[], None], limit_s: float | None
) -> int | None:
    started = spoke = time.monotonic()
    assert process.stdout
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ended = process.poll()
            if selector.get_map() and selector.select(0 if ended is not None else LOOK_EVERY_S):
                # One read takes all that a pipe holds; a daemon left behind may write for ever.
                chunk = os.read(process.stdout.fileno(), 65536)
                if chunk:
                    take(chunk)
                    spoke = time.monotonic()
                else:
                    selector.unregister(process.stdout)
            elif ended is None and not selector.get_map():
                _pause(process)
            if ended is not None:
                return ended
            now = time.monotonic()
            if limit_s is not None and now - started > limit_s:
                return None
            if now - spoke >= BEAT_S:
                beat()
                spoke = now


def _pause(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(LOOK_EVERY_S)
    except subprocess.TimeoutExpired:
        pass  # it has closed its output and goes on


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to the command and to all that stayed in its session's group."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(GRACE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


STEP_LIMIT_S = 3600.0
"""How long one step of making may take: torch for CUDA is 2 to 3 GB."""
FAMILY = re.compile(r"(?i)(torchvision|torchaudio)\b")
"""Built against one torch and one CUDA: to be had from the same index as torch."""
TORCH_WANTS = (3, 10)
"""The oldest Python that the current torch has wheels for; an older Python gets an older torch."""
ELSEWHERE = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_CONSTRAINT"}
"""Variables that would lead pip to other folders, or to another torch."""
MORE_INDEXES = {"PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX"}

Emit = Callable[[dict], None]  # type: ignore[type-arg]


class Plan(NamedTuple):
    """The protocol's `make`: requirement lines without torch, torch's own, its index ("": the usual one)."""

    requirements: Sequence[str]
    torch: str
    index_url: str
    name: str


def plan(make: Mapping[str, Any]) -> Plan:
    name = str(make["name"])
    if not re.fullmatch(r"[0-9a-z]{1,64}", name):
        raise Refusal("bad-request", f"'{name}' is not an environment's name")
    return Plan(list(make["requirements"]), str(make["torch"]), str(make["index"]), name)


def folder(node: Node, name: str) -> str:
    return os.path.join(node.root, "env", name)


def python_of(env: str) -> str:
    return os.path.join(env, "bin", "python")


def finished(node: Node) -> list[str]:
    """The names of the environments that were made here, newest first."""
    try:
        names = os.listdir(os.path.join(node.root, "env"))
    except OSError:
        return []
    made = {name: read_json(os.path.join(folder(node, name), "done")) for name in names}
    return sorted((name for name in made if made[name]), key=lambda name: -float(made[name]["at"]))


def make(node: Node, wanted: Plan, known: Sequence[Interpreter], emit: Emit, spawn: Spawn) -> Interpreter:
    """The environment `wanted`, made now unless somebody else just did. Raises Refusal (`make-failed`)."""
    env = folder(node, wanted.name)
    os.makedirs(os.path.dirname(env), mode=0o700, exist_ok=True)
    with _alone(env + ".lock", emit):
        there = look(python_of(env), spawn) if wanted.name in finished(node) else None
        if there and there.torch:
            return there
        shutil.rmtree(env, ignore_errors=True)
        try:
            made = _build(env, wanted, known, emit, spawn)
        except BaseException:  # a client that left, too: nothing half-made stays
            shutil.rmtree(env, ignore_errors=True)
            raise
        write_json(os.path.join(env, "done"), {"name": wanted.name, "at": time.time(), "torch": made.torch})
        return made


@contextmanager
def _alone(path: str, emit: Emit) -> Iterator[None]:
    with open(path, "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            emit({"say": "waiting for the environment that is being made already"})
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(env: str, wanted: Plan, known: Sequence[Interpreter], emit: Emit, spawn: Spawn) -> Interpreter:
    uv = uv_command(known, os.environ)
    base = best_base(known, bool(uv))
    for argv in torch_steps(uv, base.path, env, wanted):
        _step(argv, emit, spawn, ELSEWHERE | MORE_INDEXES if wanted.index_url else ELSEWHERE)
    made = look(python_of(env), spawn)
    if made is None or made.torch is None:
        raise Refusal(
            "make-failed",
            f"the new environment has no torch, although '{wanted.torch}' was installed",
            "check GPUOPS_TORCH_SPEC and GPUOPS_TORCH_INDEX",
        )
    rest = [line for line in wanted.requirements if not FAMILY.match(line)]
    if rest:
        constraint = write_lines(os.path.join(env, "constraint.txt"), ["torch==" + made.torch])
        listed = write_lines(os.path.join(env, "requirements.txt"), rest)
        _step([*_install(uv, env), "--constraint", constraint, "--requirement", listed], emit, spawn, ELSEWHERE)
    return made


def write_lines(path: str, lines: Sequence[str]) -> str:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    return path


def torch_steps(uv: Sequence[str], base: str, env: str, wanted: Plan) -> list[list[str]]:
    """The command lines that make `env` with `base` and put torch in it.

    Seeded with pip, or a set-up command that says `pip` would reach the one of the system.
    """
    create = [*uv, "venv", "--seed", "--python", base, env] if uv else [base, "-m", "venv", env]
    index = ["--index-url=" + wanted.index_url] if wanted.index_url else []
    family = [line for line in wanted.requirements if FAMILY.match(line)]
    return [create, [*_install(uv, env), *index, wanted.torch, *family]]


def _install(uv: Sequence[str], env: str) -> list[str]:
    if uv:
        return [*uv, "pip", "install", "--python", python_of(env)]
    return [python_of(env), "-m", "pip", "install", "--no-input", "--progress-bar=off", "--disable-pip-version-check"]


def uv_command(known: Sequence[Interpreter], environ: Mapping[str, str]) -> list[str]:
    """How uv is started here; [] where it is not to be had."""
    home = environ.get("HOME") or os.path.expanduser("~")
    on_path = shutil.which("uv", path=environ.get("PATH", os.defpath))
    programs = [on_path, os.path.join(home, ".local/bin/uv"), os.path.join(home, ".cargo/bin/uv")]
    for program in programs:
        if program and os.access(program, os.X_OK):
            return [program]
    return next(([python.path, "-m", "uv"] for python in known if python.uv), [])


def best_base(known: Sequence[Interpreter], have_uv: bool) -> Interpreter:
    """The Python to make an environment from: the first that current torch runs on. Raises Refusal."""
    able = [python for python in known if have_uv or python.ensurepip]
    if not able:
        raise Refusal(
            "make-failed",
            "no Python on this node has torch, and none can make an environment",
            "`apt-get install python3-venv` on the node, or install uv there",
        )
    return next((python for python in able if python.version >= TORCH_WANTS), able[0])


def _step(argv: Sequence[str], emit: Emit, spawn: Spawn, without: Collection[str]) -> None:
    """Run one command in an environment `without` some variables, its lines passed on as `say`.

    Raises Refusal with its last lines.
    """
    lines = Lines(emit)
    environment = {name: value for name, value in os.environ.items() if name not in without}
    try:
        code = run(argv, lines.take, lambda: emit({"beat": time.time()}), spawn, STEP_LIMIT_S, env=environment)
    except OSError as error:
        code = 126
        lines.take(f"{argv[0]} cannot be started: {error.strerror}\n".encode())
    if code == 0:
        return
    what = f"a step took longer than {STEP_LIMIT_S / 60:.0f} minutes" if code is None else lines.complaint()
    raise Refusal(
        "make-failed",
        f"an environment with torch could not be made: {what}",
        "check that the node reaches the package index, or name a Python that has torch with --python",
        tail=lines.last,
    )


class Lines:
    """Bytes in; whole lines out, and the last twenty kept."""

    def __init__(self, emit: Emit) -> None:
        self.last: list[str] = []
        self._emit = emit
        self._part = b""

    def take(self, chunk: bytes) -> None:
        *whole, self._part = re.split(rb"[\r\n]+", self._part + chunk)
        for line in whole:
            text = line.decode("utf-8", "replace").strip()[:300]
            if text:
                self.last = [*self.last[-19:], text]
                self._emit({"say": text})

    def complaint(self) -> str:
        """The line that says most about a failure: the last that calls itself an error, else the last."""
        if self._part:
            self.take(b"\n")
        errors = [line for line in self.last if re.match(r"(?i)error\b", line)]
        return (errors or self.last or ["no reason was given"])[-1]
