"""Verbs `python` and `setup`: which Python runs things on this node, and preparing it for a project."""

from __future__ import annotations

import base64
import os
import re
import shutil
import time
from typing import Any, Callable, Mapping, Sequence

from gpuops.agent.node import Node, Refusal, read_json, write_json
from gpuops.agent.python import environments
from gpuops.agent.python.environments import Emit
from gpuops.agent.python.interpreters import OLDEST, Candidate, Interpreter, Spawn, distinct, helper, look, usual_places

Places = Callable[[Mapping[str, str]], Sequence[Candidate]]


def python(
    node: Node, args: dict[str, Any], emit: Emit, spawn: Spawn = helper, places: Places = usual_places
) -> dict[str, Any]:
    """The Python for a run: the one asked for, the first that will do, or one made here.

    Raises Refusal: `no-python` when there is none, `make-failed` when none could be made.
    """
    needs_torch = bool(args.get("needs_torch"))
    if args.get("explicit"):
        return _answer(_explicit(str(args["explicit"]), needs_torch, spawn), "given with --python")
    wanted = environments.plan(args["make"]) if args.get("make") else None
    known: list[Interpreter] = []
    name = wanted.name if wanted else str(args.get("name") or "")
    for candidate in candidates(node, name, args.get("candidates") or [], places(os.environ)):
        found = look(candidate.path, spawn)
        if found is None or found.version < OLDEST:
            continue
        if found.torch or not needs_torch:
            return _answer(found, candidate.why)
        known.append(found)
    if wanted is None:
        raise Refusal("no-python", "no Python on this node has torch", "name one that has with --python PATH")
    return _answer(environments.make(node, wanted, known, emit, spawn), "made for this project", made=True)


def candidates(node: Node, name: str, first: Sequence[str], usual: Sequence[Candidate]) -> list[Candidate]:
    """Where to look, best first. An environment made here for other requirements does not count."""
    made = [environments.python_of(environments.folder(node, name))] if name in environments.finished(node) else []
    ours = [Candidate(path, "made for this project") for path in made]
    active = [Candidate(path, "the active environment") for path in first]
    return distinct([*ours, *active, *usual])


def _answer(found: Interpreter, why: str, made: bool = False) -> dict[str, Any]:
    version = ".".join(map(str, found.version))
    torch, cuda = found.torch, found.cuda
    return {"python": found.path, "version": version, "torch": torch, "cuda": cuda, "why": why, "made": made}


def _explicit(asked: str, needs_torch: bool, spawn: Spawn) -> Interpreter:
    path = os.path.expanduser(asked) if os.sep in asked else shutil.which(asked)
    hint = "name a Python of the node with --python PATH, or leave --python out"
    if path is None or not os.path.isabs(path) or not os.path.exists(path):
        raise Refusal("no-python", f"there is no Python at '{asked}' on this node", hint)
    found = look(path, spawn)
    if found is None:
        raise Refusal("no-python", f"'{asked}' does not run as a Python on this node", hint)
    if found.version < OLDEST:
        raise Refusal(
            "no-python", f"'{asked}' is Python {found.version[0]}.{found.version[1]}, and 3.8 or later is needed", hint
        )
    if needs_torch and not found.torch:
        raise Refusal("no-python", f"'{asked}' has no torch", "install torch there, or leave --python out")
    return found


def setup(node: Node, args: dict[str, Any], emit: Emit, spawn: Spawn = helper) -> dict[str, Any]:
    """Run a shell command in a tree, for one Python; skipped when the same `key` has succeeded for it."""
    tree, command, interpreter, key = (str(args[name]) for name in ("tree", "command", "python", "key"))
    if not re.fullmatch(r"[0-9A-Za-z-]{1,80}", key):
        raise Refusal("bad-request", f"'{key}' is not a key")
    folder = node.tree(tree)
    if not os.path.isdir(folder):
        raise Refusal("no-tree", f"nothing was pushed as '{tree}' yet", "`gpuops push` sends it")
    os.makedirs(node.path("env"), mode=0o700, exist_ok=True)
    marker = node.path("env", f"setup-{key}.json")
    done = {"python": interpreter, "tree": tree}
    if read_json(marker) == done:
        return {"code": 0, "skipped": True}
    code = environments.run(
        [shutil.which("bash") or "sh", "-c", command],
        lambda chunk: emit({"b64": base64.b64encode(chunk).decode("ascii")}),
        lambda: emit({"beat": time.time()}),
        spawn,
        cwd=folder,
        env=setup_environment(os.environ, interpreter, _constraint(node, interpreter, key, spawn)),
    )
    if code == 0:
        write_json(marker, done)
    return {"code": code, "skipped": False}


def _constraint(node: Node, interpreter: str, key: str, spawn: Spawn) -> str:
    """Path of a file that holds pip to the torch that is there; "" when there is none to keep."""
    found = look(interpreter, spawn)
    if found is None:
        raise Refusal(
            "no-python", f"there is no Python at '{interpreter}' on this node", "ask again which Python there is"
        )
    if found.torch is None:
        return ""
    return environments.write_lines(node.path("env", f"setup-{key}.constraint"), ["torch==" + found.torch])


def setup_environment(environ: Mapping[str, str], interpreter: str, constraint: str) -> dict[str, str]:
    """`environ` with `interpreter`'s folder first on the PATH, and pip and uv held to `constraint`.

    An image may constrain pip already (NVIDIA's do): both hold, since pip takes a list.
    """
    path = os.path.dirname(interpreter) + os.pathsep + environ.get("PATH", os.defpath)
    joined = {**environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in ("PIP_CONSTRAINT", "UV_CONSTRAINT"):
        if constraint:
            joined[name] = " ".join(filter(None, [constraint, environ.get(name)]))
    return joined
