"""One Python on this node: its version, and the torch that it would import, found without importing it.

Importing torch takes seconds and may hang on a broken driver; `torch/version.py` has its version too. Only the Python
itself knows the folders that it imports from (environments of environments, system-site-packages, .pth files, the
user's site), so it is started once, briefly.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import Callable, Iterable, Mapping, NamedTuple, Sequence

from gpuops.agent import processes

MIN_PYTHON = (3, 8)
PROBE_TIMEOUT_S = 20.0
"""Time that a Python may take to describe itself."""

Spawn = Callable[..., "subprocess.Popen[bytes]"]

# Without the current folder on the path: a json.py in it would be imported.
_PROBE_SCRIPT = """
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
    """Of the program itself: a version manager's shim may choose another Python in every folder."""
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


def probe_interpreter(path: str, spawn: Spawn = processes.start_helper) -> Interpreter | None:
    """Describe the Python at `path`; None where there is none that answers within PROBE_TIMEOUT_S."""
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        return None
    printed = _read_output([path, "-E", "-c", _PROBE_SCRIPT], spawn)
    try:
        facts = json.loads(printed.splitlines()[-1])
        version = tuple(facts["version"])
    except (IndexError, ValueError, KeyError, TypeError):
        return None
    torch, cuda = find_torch(facts["path"])
    return Interpreter(
        facts.get("executable") or path, version, torch, cuda, bool(facts["ensurepip"]), bool(facts["uv"])
    )


def _read_output(argv: Sequence[str], spawn: Spawn) -> str:
    """The output of a short command; empty where it fails or takes longer than PROBE_TIMEOUT_S."""
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
    output = processes.read_output(process, PROBE_TIMEOUT_S)
    return output[0].decode("utf-8", "replace") if output and process.returncode == 0 else ""


def find_torch(folders: Iterable[str]) -> tuple[str | None, str | None]:
    """Versions of torch and of its CUDA in the first of `folders` that has torch; None, None without."""
    for folder in folders:
        try:
            with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError):
            continue
        version = _assigned_string(text, "__version__")
        if version:
            return version, _assigned_string(text, "cuda")
    return None, None


def _assigned_string(text: str, name: str) -> str | None:
    """The string assigned to `name` at the start of a line, with or without an annotation."""
    match = re.search(rf"(?m)^{name}\s*(?::[^=\n]*)?=\s*['\"]([^'\"]+)['\"]", text)
    return match.group(1) if match else None


def usual_candidates(environ: Mapping[str, str]) -> list[Candidate]:
    """Where machines for training usually have torch, best first. Some may not exist."""
    on_path = shutil.which("python3", path=environ.get("PATH", os.defpath))
    return [
        Candidate("/opt/pytorch/bin/python", "PyTorch's environment of this image"),
        *(Candidate(place, "conda's environment") for place in _conda_pythons(environ)),
        *([Candidate(on_path, "python3 on the PATH")] if on_path else []),
        Candidate("/usr/bin/python3", "the system's python3"),
        Candidate("/usr/local/bin/python3", "the python3 in /usr/local"),
        Candidate(sys.executable, "the Python that runs gpuops' agent"),
    ]


def _conda_pythons(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("HOME") or os.path.expanduser("~")
    prefixes = [
        environ.get("CONDA_PREFIX", ""),
        os.path.join(home, "miniconda3"),
        os.path.join(home, "anaconda3"),
        "/opt/conda",
        "/opt/miniconda",
    ]
    return [os.path.join(prefix, "bin", "python") for prefix in prefixes if prefix]


def distinct_candidates(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each place once, the first mention of it.

    The last link is not followed: an environment's python is a link to the Python it was made from, and yet another
    Python.
    """
    seen: dict[str, Candidate] = {}
    for candidate in candidates:
        folder, name = os.path.split(os.path.abspath(candidate.path))
        seen.setdefault(os.path.join(os.path.realpath(folder), name), candidate)
    return list(seen.values())
