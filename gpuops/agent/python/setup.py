"""Verbs `python` and `setup`: choose the Python that runs things on this node, and prepare it for a project."""

from __future__ import annotations

import base64
import os
import re
import shutil
import time
from typing import Any, Callable, Mapping, Sequence

from gpuops.agent.node import Emit, Node, Refusal, read_json, write_json
from gpuops.agent.processes import start_helper
from gpuops.agent.python import environments
from gpuops.agent.python.interpreters import (
    MIN_PYTHON,
    Candidate,
    Interpreter,
    Spawn,
    distinct_candidates,
    probe_interpreter,
    usual_candidates,
)

CandidateLister = Callable[[Mapping[str, str]], Sequence[Candidate]]


def python(
    node: Node,
    args: dict[str, Any],
    emit: Emit,
    spawn: Spawn = start_helper,
    list_usual: CandidateLister = usual_candidates,
) -> dict[str, Any]:
    """Verb: the Python for a run: an explicit one, the first suitable one, or one made here.

    Raises Refusal: `no-python` where there is none, `make-failed` where none could be made.
    """
    needs_torch = bool(args.get("needs_torch"))
    if args.get("explicit"):
        return _describe(_explicit_interpreter(str(args["explicit"]), needs_torch, spawn), "given with --python")
    plan = environments.parse_plan(args["make"]) if args.get("make") else None
    known: list[Interpreter] = []
    name = plan.name if plan else str(args.get("name") or "")
    for candidate in list_candidates(node, name, args.get("candidates") or [], list_usual(os.environ)):
        interpreter = probe_interpreter(candidate.path, spawn)
        if interpreter is None or interpreter.version < MIN_PYTHON:
            continue
        if interpreter.torch or not needs_torch:
            return _describe(interpreter, candidate.why)
        known.append(interpreter)
    if plan is None:
        raise Refusal("no-python", "no Python on this node has torch", "name one that has with --python PATH")
    return _describe(
        environments.ensure_environment(node, plan, known, emit, spawn), "made for this project", made=True
    )


def list_candidates(node: Node, name: str, first: Sequence[str], usual: Sequence[Candidate]) -> list[Candidate]:
    """Pythons to probe, best first. Environments made here for other requirements are left out."""
    made = (
        [environments.environment_python(environments.environment_folder(node, name))]
        if name in environments.list_environments(node)
        else []
    )
    ours = [Candidate(path, "made for this project") for path in made]
    active = [Candidate(path, "the active environment") for path in first]
    return distinct_candidates([*ours, *active, *usual])


def _describe(interpreter: Interpreter, why: str, made: bool = False) -> dict[str, Any]:
    version = ".".join(map(str, interpreter.version))
    torch, cuda = interpreter.torch, interpreter.cuda
    return {"python": interpreter.path, "version": version, "torch": torch, "cuda": cuda, "why": why, "made": made}


def _explicit_interpreter(requested: str, needs_torch: bool, spawn: Spawn) -> Interpreter:
    """The Python that a user named. Raises Refusal(`no-python`) where it does not suit."""
    path = os.path.expanduser(requested) if os.sep in requested else shutil.which(requested)
    hint = "name a Python of the node with --python PATH, or leave --python out"
    if path is None or not os.path.isabs(path) or not os.path.exists(path):
        raise Refusal("no-python", f"there is no Python at '{requested}' on this node", hint)
    interpreter = probe_interpreter(path, spawn)
    if interpreter is None:
        raise Refusal("no-python", f"'{requested}' does not run as a Python on this node", hint)
    if interpreter.version < MIN_PYTHON:
        version = "{}.{}".format(*interpreter.version)
        raise Refusal("no-python", f"'{requested}' is Python {version}, and 3.8 or later is needed", hint)
    if needs_torch and not interpreter.torch:
        raise Refusal("no-python", f"'{requested}' has no torch", "install torch there, or leave --python out")
    return interpreter


def setup(node: Node, args: dict[str, Any], emit: Emit, spawn: Spawn = start_helper) -> dict[str, Any]:
    """Verb: run a shell command in a tree, for one Python; skipped where the same `key` has succeeded for both.

    Raises Refusal: `no-tree`, `no-python`, `bad-request`.
    """
    tree, command, interpreter, key = (str(args[name]) for name in ("tree", "command", "python", "key"))
    if not re.fullmatch(r"[0-9A-Za-z-]{1,80}", key):
        raise Refusal("bad-request", f"'{key}' is not a key")
    folder = node.tree(tree)
    if not os.path.isdir(folder):
        raise Refusal("no-tree", f"nothing was pushed as '{tree}' yet", "`gpuops push` sends it")
    os.makedirs(node.path("env"), mode=0o700, exist_ok=True)
    record = node.path("env", f"setup-{key}.json")
    done = {"python": interpreter, "tree": tree}
    if read_json(record) == done:
        return {"code": 0, "skipped": True}
    code = environments.run_streaming(
        [shutil.which("bash") or "sh", "-c", command],
        lambda chunk: emit({"b64": base64.b64encode(chunk).decode("ascii")}),
        lambda: emit({"beat": time.time()}),
        spawn,
        cwd=folder,
        env=setup_environment(os.environ, interpreter, _write_constraint(node, interpreter, key, spawn)),
    )
    if code == 0:
        write_json(record, done)
    return {"code": code, "skipped": False}


def _write_constraint(node: Node, interpreter: str, key: str, spawn: Spawn) -> str:
    """Path of a file that constrains pip to the torch of this Python; "" where it has none."""
    known = probe_interpreter(interpreter, spawn)
    if known is None:
        raise Refusal(
            "no-python", f"there is no Python at '{interpreter}' on this node", "ask again which Python there is"
        )
    if known.torch is None:
        return ""
    return environments.write_lines(node.path("env", f"setup-{key}.constraint"), ["torch==" + known.torch])


def setup_environment(environ: Mapping[str, str], interpreter: str, constraint: str) -> dict[str, str]:
    """`environ` with `interpreter`'s folder first on the PATH, and pip and uv constrained by the file `constraint`.

    Constraints of the image (NVIDIA's have some) stay in force: both variables hold lists.
    """
    path = os.path.dirname(interpreter) + os.pathsep + environ.get("PATH", os.defpath)
    result = {**environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in ("PIP_CONSTRAINT", "UV_CONSTRAINT"):
        if constraint:
            result[name] = " ".join(filter(None, [constraint, environ.get(name)]))
    return result
