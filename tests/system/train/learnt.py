"""What a program has learnt, to be judged by its own code in the test's process."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from late import torch

TRAIN = Path(__file__).parents[3] / "train"


def module_of(name: str) -> ModuleType:
    """train/NAME.py as a module, without running it."""
    spec = importlib.util.spec_from_file_location(name, TRAIN / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def last_snapshot(folder: Path, name: str) -> dict[str, Any]:
    """What the program that ran in this folder has kept last."""
    kept = folder / "snapshots" / name
    state: dict[str, Any] = torch.load(kept / (kept / "last").read_text().strip(), weights_only=True)
    return state
