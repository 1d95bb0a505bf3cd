"""The Python of an image file that a run is started in (`apptainer exec`), while the agent is outside of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuops.core.errors import ConnectionLost, NodeError, NodeRefused, RefusalKind
from gpuops.transport.bulk_transfer import exchange
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport.schemas import NodePython

SILENCE_S = 120.0
"""An image file on a network file system takes this long to open, at most."""
PROBE = r"""
import json, os, re, sys
if sys.version_info < (3, 8):
    sys.exit("it is Python %d.%d, and 3.8 or later is needed" % sys.version_info[:2])
text = ""
for folder in sys.path:
    try:
        text = folder and open(os.path.join(folder, "torch", "version.py")).read()
    except OSError:
        pass
    if text:
        break
found = {name: value for name, value in re.findall(r"(?m)^(\w+)[^=\n]*=\s*['\"]([^'\"]+)['\"]", text)}
print(json.dumps({"python": sys.executable, "version": ".".join(map(str, sys.version_info[:3])),
                  "torch": found.get("__version__"), "cuda": found.get("cuda"), "why": "the image's"}))
"""
"""Prints what the verb `python` answers; torch is not imported, since that takes seconds."""


def find_python(client: AgentClient, within: Sequence[str], python: str | None, *, needs_torch: bool) -> NodePython:
    """The Python of the image, `python` or its own python3. Raises NodeRefused where it does not suit a run."""
    from gpuops.transport import schemas, validation

    try:
        output = exchange(
            client.connection.open([*within, python or "python3", "-E", "-c", PROBE]), client.label, b"", SILENCE_S
        )
        found: NodePython = validation.convert(validation.parse_json(output), schemas.NodePython)
    except (ConnectionLost, ValueError) as error:
        if isinstance(error, ConnectionLost) and error.__cause__ is not None:
            raise  # the connection itself
        said = error.message if isinstance(error, NodeError) else str(error)
        raise _refusal(f"{client.label}: no Python answers in the image {within[-1]}: {said}") from error
    if needs_torch and not found.torch:
        raise _refusal(f"{client.label}: the Python of the image {within[-1]} has no torch")
    return found


def _refusal(say: str) -> NodeRefused:
    return NodeRefused(say, "take an image that has it, or name a Python in it: --python PATH", RefusalKind.NO_PYTHON)
