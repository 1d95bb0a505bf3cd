"""A notebook as a script: its code cells one after the other, without what only IPython understands.

The format (nbformat 4) is JSON: https://nbformat.readthedocs.io/en/latest/format_description.html. What is left out is
told: magics (`%`, `%%`), shell lines (`!`) and questions (`?`), which are no Python.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from gpuops.core.errors import UsageError
from gpuops.core.files import read_small, write_atomic

SUFFIX = ".ipynb"
MAX_BYTES = 100_000_000
"""Outputs, images too, are in the same file."""
IPYTHON_LINE = re.compile(r"(?P<indent>\s*)(?:[%!?]|[\w., ]+=\s*[%!]|[\w.]+\?{1,2}\s*$)")
MARK = b"# made by gpuops from "
"""How a script of ours begins."""
PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")
"""Cells that begin with one of these are Python from the second line on."""


@dataclass(frozen=True)
class Converted:
    script: str
    left_out: tuple[str, ...]
    """Each with the number of its cell: `cell 2: !pip install x`."""


def convert(text: str, name: str) -> Converted:
    """The script of a notebook's text. Raises UsageError where it is no notebook, or a cell no Python."""
    try:
        cells = json.loads(text)["cells"]
        codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(
            f"{name} is no notebook in Jupyter's format 4", "open it in Jupyter and save it again"
        ) from None
    parts, left_out = [f"{MARK.decode()}{name}, anew for each run: change the notebook, not this\n"], []
    for number, code in enumerate(codes, 1):
        kept, gone = _without_ipython(code)
        left_out += [f"cell {number}: {line}" for line in gone]
        if not _is_python(kept):
            raise UsageError(f"cell {number} of {name} is no Python", "run it there once, and save the notebook again")
        parts.append(f"\n# cell {number}\n{kept.rstrip()}\n")
    return Converted("".join(parts), tuple(left_out))


def _without_ipython(code: str) -> tuple[str, list[str]]:
    """A cell's Python, and the lines that were none."""
    lines = code.splitlines()
    first = lines[0].strip() if lines else ""
    if first.startswith("%%") and not first.startswith(PYTHON_MAGICS):
        return "", [f"{first} and its cell"]
    if _is_python(code):  # a line that begins with % may go on with an expression of the line before
        return code, []
    kept, gone = [], []
    for line in lines:
        if found := IPYTHON_LINE.match(line):
            gone.append(line.strip())
            kept.append(f"{found['indent']}pass  # left out: {line.strip()}")  # an `if` needs a line
        else:
            kept.append(line)
    return "\n".join(kept), gone


def _is_python(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
        return False
    return True


def script_name(notebook: str) -> str:
    """Beside the notebook, under a name that can be imported."""
    return f"{notebook.removesuffix(SUFFIX)}_ipynb.py"


def write_script(folder: Path, notebook: str) -> Converted:
    """Write `script_name(notebook)`, over an earlier one of ours only. Raises UsageError."""
    try:
        text = read_small(folder / notebook, MAX_BYTES).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"{notebook} cannot be read: {error}", "check the file") from error
    converted = convert(text, notebook)
    path = folder / script_name(notebook)
    if not _is_ours(path):
        raise UsageError(f"{script_name(notebook)} is not gpuops', and would be overwritten", "give it another name")
    write_atomic(path, converted.script.encode())
    return converted


def _is_ours(path: Path) -> bool:
    """Whether it may be replaced. A cloned project may have a link to a device there, or a pipe: neither is read."""
    try:
        return read_small(path, MAX_BYTES).startswith(MARK)
    except FileNotFoundError:
        return not path.is_symlink()
    except OSError:
        return False
