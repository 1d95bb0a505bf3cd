"""On a client's PYTHONPATH, the agent that gpuops packs is the lying one (tests/integration/security/hostile.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuops.nodes import bootstrap

MAIN = Path(__file__).parents[1] / "hostile_main.py"
honest = bootstrap.agent_sources


def lying() -> Iterator[tuple[str, bytes]]:
    for name, content in honest():
        yield ("real_main.py" if name == "__main__.py" else name), content
    yield "__main__.py", MAIN.read_bytes()


bootstrap.agent_sources = lying
