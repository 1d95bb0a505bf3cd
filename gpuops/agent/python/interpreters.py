"""One Python on this node: its version, and the torch that it would import, found without importing it.

Importing torch takes seconds and may hang on a broken driver; `torch/version.py` says the same in
microseconds. Which folders a Python imports from only that Python knows (environments made from
environments, system-site-packages, .pth files, the user's own site), so it is asked, once, briefly.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

OLDEST = (3, 8)
LOOK_S = 20.0
"""How long a Python may take to say what it is, in seconds."""

Spawn = Callable[..., "subprocess.Popen[bytes]"]

# The current folder is not where a package may come from: a tree with a json.py of its own would answer.
_QUESTION = """
import sys
sys.path = [path for path in sys.path if path]
import importlib.util, json
has = lambda name: importlib.util.find_spec(name) is not None
print(json.dumps({"executable": sys.executable, "version": list(sys.version_info[:3]), "path": sys.path,
                  "ensurepip": has("ensurepip") and has("venv"), "uv": has("uv")}))
"""


class Interpreter(NamedTuple):
    """A Python that answered. `torch` and `cuda` are versions, or None where there is none."""

    path: str
    """Of the program itself: a version manager's shim would choose anew in every folder."""
    version: tuple[int, ...]
    torch: str | None
    cuda: str | None
    ensurepip: bool
    """Whether it can make an environment by itself."""
    uv: bool
    """Whether `-m uv` works."""


class Candidate(NamedTuple):
    path: str
    why: str
    """Part of a sentence: `the active environment`."""


def helper(argv: Sequence[str], **popen: Any) -> subprocess.Popen[bytes]:
    """Start a process that the end of a run leaves alone."""
    from gpuops.agent import processes

    return processes.helper(argv, **popen)


def look(path: str, spawn: Spawn = helper) -> Interpreter | None:
    """What `path` is, or None when it is no Python that answers within LOOK_S."""
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        return None
    said = _ask([path, "-E", "-c", _QUESTION], spawn)
    try:
        facts = json.loads(said.splitlines()[-1])
        version = tuple(facts["version"])
    except (IndexError, ValueError, KeyError, TypeError):
        return None
    torch, cuda = torch_in(facts["path"])
    return Interpreter(
        facts.get("executable") or path, version, torch, cuda, bool(facts["ensurepip"]), bool(facts["uv"])
    )


def _ask(argv: Sequence[str], spawn: Spawn) -> str:
    """What a short command prints; "" when it fails or takes longer than LOOK_S."""
    try:
        process = spawn(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        return ""  # not a program for this machine
    try:
        out, _ = process.communicate(timeout=LOOK_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=1.0)
        except subprocess.TimeoutExpired:
            pass  # it hangs in the kernel (a dead NFS), and so would we
        return ""
    return out.decode("utf-8", "replace") if process.returncode == 0 else ""


def torch_in(folders: Iterable[str]) -> tuple[str | None, str | None]:
    """Version of torch and of its CUDA in the first of `folders` that holds it; None, None without."""
    for folder in folders:
        try:
            with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError):
            continue
        version = _assigned(text, "__version__")
        if version:
            return version, _assigned(text, "cuda")
    return None, None


def _assigned(text: str, name: str) -> str | None:
    """The string given to `name` at the start of a line, with or without an annotation."""
    match = re.search(rf"(?m)^{name}\s*(?::[^=\n]*)?=\s*['\"]([^'\"]+)['\"]", text)
    return match.group(1) if match else None


def usual_places(environ: Mapping[str, str]) -> list[Candidate]:
    """Where torch is kept on machines for training, best first. Some may not exist."""
    path = environ.get("PATH", os.defpath)
    found = shutil.which("python3", path=path)
    return [
        Candidate("/opt/pytorch/bin/python", "PyTorch's environment of this image"),
        *(Candidate(place, "conda's environment") for place in _conda(environ)),
        *([Candidate(found, "python3 on the PATH")] if found else []),
        Candidate("/usr/bin/python3", "the system's python3"),
        Candidate("/usr/local/bin/python3", "the python3 in /usr/local"),
        Candidate(sys.executable, "the Python that runs gpuops' agent"),
    ]


def _conda(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("HOME") or os.path.expanduser("~")
    prefixes = [
        environ.get("CONDA_PREFIX", ""),
        os.path.join(home, "miniconda3"),
        os.path.join(home, "anaconda3"),
        "/opt/conda",
        "/opt/miniconda",
    ]
    return [os.path.join(prefix, "bin", "python") for prefix in prefixes if prefix]


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each place once, at its first mention.

    The last link is not followed: an environment's python is a link to the Python it was made
    from, and yet another Python.
    """
    seen: dict[str, Candidate] = {}
    for candidate in candidates:
        folder, name = os.path.split(os.path.abspath(candidate.path))
        seen.setdefault(os.path.join(os.path.realpath(folder), name), candidate)
    return list(seen.values())
