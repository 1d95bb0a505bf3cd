"""What a Python environment for a project must hold, and which build of torch fits the GPUs.

Pure but for reading the project's own files: the node makes the environment (verb `python`).
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.core.errors import UsageError
from gpuops.core.files import read_small
from gpuops.core.settings import Settings
from gpuops.nodes import cuda

if TYPE_CHECKING:
    from gpuops.transport.schemas import Gpu

TESTED_TORCH = "torch>=2.4,<2.14"
"""The torch that gpuops is tested with; also in the package's extra `train`."""
WORKLOAD_REQUIREMENTS = ("numpy>=1.26,<3",)
"""What the reference workloads need beside torch."""
DEFAULT_REQUIREMENTS = ("numpy",)
"""What a project gets that names nothing beside torch: without numpy every rank begins with torch's warnings."""
IS_TORCH = re.compile(r"(?i)torch\b(?![-.])")
"""Matches a requirement of torch itself, not of torch-geometric."""
BUILD_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
"""The files that say how a folder is built and what it requires."""
NAMED_PATH = re.compile(r"(?m)^[ \t]*(?:(?:-[rce]|--requirement|--constraint|--editable)[ \t=]*|(?=\.))(\S+)")
"""Matches a line of requirements that names a file or a folder."""
MAX_NAMED_PATHS = 1000
"""How many names are followed: no project file may delay a command for long."""


def choose_torch(gpus: Sequence[Gpu], settings: Settings, asked: str = "") -> tuple[str, str]:
    """What to ask pip for, and the index ("": pip's own) it comes from.

    gpus: of every node that shall run the same torch; empty for the CPU.
    asked: the project's own requirement of torch. Raises UsageError when no build fits.
    """
    spec = settings.env_values.get("GPUOPS_TORCH_SPEC") or asked or TESTED_TORCH
    if not IS_TORCH.match(spec):
        raise UsageError(f"GPUOPS_TORCH_SPEC is '{spec}', which does not ask for torch", "write it as in torch==2.11.0")
    if "GPUOPS_TORCH_INDEX" in settings.env_values:
        return spec, settings.env_values["GPUOPS_TORCH_INDEX"]
    pinned = re.match(r"(?i)torch\s*(?:\[[^]]*\]\s*)?===?\s*(\d+)\.(\d+)[.*\w]*(?:\+(\w+))?", spec)
    if pinned and pinned[3]:
        return spec, cuda.INDEX + pinned[3]  # torch==2.5.1+cu121 exists in one index only
    if not gpus:
        return spec, cuda.CPU_INDEX
    version = (int(pinned[1]), int(pinned[2])) if pinned else None
    return spec, cuda.INDEX + _wheel_tag(gpus, spec, version)


def _wheel_tag(gpus: Sequence[Gpu], spec: str, version: tuple[int, int] | None) -> str:
    driver = min(int(_driver(gpu)) for gpu in gpus)
    generations = [cuda.capability(_compute_capability(gpu)) or (0, 0) for gpu in gpus]
    tag = cuda.choose(driver, generations, version)
    if tag is not None:
        return tag
    names = " and ".join(sorted({gpu.name or "GPU" for gpu in gpus}))
    raise UsageError(
        f"no build of {spec} is known for {names} with driver {driver}",
        "ask for another torch, or name the index that has it: GPUOPS_TORCH_INDEX",
    )


def _driver(gpu: Gpu) -> str:
    """550.54.15 is driver 550. Raises UsageError."""
    return _leading_number(r"\d+", gpu.driver, "driver")


def _compute_capability(gpu: Gpu) -> str:
    """Raises UsageError."""
    return _leading_number(r"\d+\.\d+", gpu.compute_cap, "generation")


def _leading_number(number: str, text: str, what: str) -> str:
    match = re.match(number, text)
    if match is None:
        raise UsageError(
            f"the node does not say which {what} its GPU has",
            "name the index that torch shall come from: GPUOPS_TORCH_INDEX",
        )
    return match[0]


def make_plan(folder: Path, gpus: Sequence[Gpu], settings: Settings, workload: bool) -> dict[str, Any]:
    """The argument `make` of verb `python`: requirements without torch, torch, index, name by content.

    workload: for one of gpuops' own programs, to which the folder's files do not matter.
    """
    lines = list(WORKLOAD_REQUIREMENTS) if workload else read_requirements(folder)
    asked = [line for line in lines if IS_TORCH.match(line)]
    spec, index = choose_torch(gpus, settings, asked[0] if asked else "")
    rest = [line for line in lines if line not in asked]
    if not rest and not settings.env_values.get("GPUOPS_TORCH_INDEX"):  # who has an own index may reach no other
        rest = list(DEFAULT_REQUIREMENTS)
    content = json.dumps([rest, spec, index]).encode()
    return {"requirements": rest, "torch": spec, "index": index, "name": hashlib.sha256(content).hexdigest()[:12]}


def read_requirements(folder: Path) -> list[str]:
    """The project's requirements as pip takes them: `requirements.txt`, else `pyproject.toml`.

    What only exists inside the project (`-e .`, `./wheels/x.whl`, `-c file`) is left out: it is not
    there when the environment is made, and a set-up command deals with it. Raises UsageError.
    """
    requirements = folder / "requirements.txt"
    if requirements.is_file():
        return list(_requirement_lines(_require_inside(requirements), folder, set()))
    project = folder / "pyproject.toml"
    return _dependencies(_require_inside(project)) if project.is_file() else []


def is_package(folder: Path) -> bool:
    """Whether pip can install the project: its `pyproject.toml` may also hold nothing but settings of tools."""
    try:
        found = tomllib.loads(_read_text(folder / "pyproject.toml")).keys()
    except (UsageError, ValueError, RecursionError):
        return (folder / "pyproject.toml").is_file()  # pip says what is wrong with it
    return not found.isdisjoint({"project", "build-system"})


def files_read_by(command: str, folder: Path) -> list[bytes]:
    """Of the project's files, the contents of those that a shell command names, and of what requirements name in turn.

    `pip install .` names a folder: that is, what says how it is built. What cannot be read is left out.
    """
    base, seen = folder.resolve(), dict[Path, bytes]()
    waiting = [(base, word) for word in re.split(r"[][\s'\"=;&|<>()]+", command) if word][:MAX_NAMED_PATHS]
    for within, word in waiting:
        try:
            path = (within / word).resolve()
            if path in seen or not path.is_relative_to(base):
                continue
            more = BUILD_FILES if path.is_dir() else _named_paths(seen.setdefault(path, read_small(path)), path)
        except (OSError, ValueError, RuntimeError):  # the last: links that lead to themselves
            continue
        inside = path if path.is_dir() else path.parent
        waiting += [(inside, name) for name in more][: max(0, MAX_NAMED_PATHS - len(waiting))]
    return [seen[path] for path in sorted(seen)]


def _named_paths(content: bytes, path: Path) -> Sequence[str]:
    return NAMED_PATH.findall(content.decode(errors="replace")) if path.suffix == ".txt" else ()


def _require_inside(path: Path) -> Path:
    """A file of the project, whose lines go to nodes. Raises UsageError where it is a link that leads out of it."""
    if not path.resolve().is_relative_to(path.parent.resolve()):
        raise UsageError(f"{path.name} is a link that leads out of the project", "put the file itself in its place")
    return path


def _requirement_lines(path: Path, folder: Path, seen: set[Path]) -> Iterator[str]:
    """Lines of one requirements file and, in their place, of those that it includes."""
    path = path.resolve()
    if path in seen:
        return
    seen.add(path)
    # Comments go first, as pip has it: a backslash that ends a comment joins nothing.
    bare = "\n".join(re.sub(r"(^|\s)#.*$", "", line) for line in _read_text(path).splitlines())
    for line in bare.replace("\\\n", " ").splitlines():
        line = " ".join(line.split())
        include = re.fullmatch(r"(?:-r|--requirement)[ =]?(.+)", line)
        if include:
            yield from _requirement_lines(_included_file(path, include[1], folder), folder, seen)
        elif line and not re.match(r"(-e|--editable|-c|--constraint)\b|[./~]|file:", line):
            yield line


def _included_file(path: Path, named: str, folder: Path) -> Path:
    """The file that a `-r` names. Raises UsageError when it is outside the project, or absent."""
    target = (path.parent / named).resolve()
    if not target.is_relative_to(folder.resolve()):
        raise UsageError(
            f"{path.name} includes {named}, which is outside the project", "copy that file into the project"
        )
    if not target.is_file():
        raise UsageError(f"{path.name} includes {named}, which does not exist", "correct the line, or add the file")
    return target


def _read_text(path: Path) -> str:
    try:
        return read_small(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "make it a text file in UTF-8") from error


def _dependencies(path: Path) -> list[str]:
    try:
        project = tomllib.loads(_read_text(path)).get("project", {})
        return [str(line) for line in project.get("dependencies", [])]
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "correct [project] and its dependencies") from error
