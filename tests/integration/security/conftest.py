"""A user whose nodes lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Shell
from tests.integration.security.hostile import make_hostile, tell_lies


@pytest.fixture
def lie(shell: Shell) -> Callable[[str], None]:
    """Every node that `shell` brings up runs the lying agent; what is given is the source of its lies."""
    folder: Path = make_hostile(shell)
    return lambda source: tell_lies(folder, source)
