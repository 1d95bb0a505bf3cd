"""A stub of torchrun for tests that are about who starts, stops and reports, not about learning.

Importing torch takes a second and a half of a core for each node, the stub a tenth. A Python whose path begins with
FOLDER finds `torch/` beside this module in the place of torch. A test of torch itself, or of a script that imports it,
is marked `real_torch`; tests/integration/fakes/test_torchrun.py holds the stub to the real one.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent
VARIABLE = "GPUOPS_TEST_TORCH"
"""Which launcher a test has (`real`, `stub`): set for each test by tests/conftest.py, read where a Python is made."""


def is_stub() -> bool:
    return os.environ.get(VARIABLE) == "stub"
