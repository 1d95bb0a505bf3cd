"""Every generator of random numbers that a training program may use, at once: Python's, numpy's, torch's, the GPU's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)  # every GPU's, too


def state(device: torch.device) -> dict[str, Any]:
    """Where this process's generators stand, in types that `torch.load(weights_only=True)` admits."""
    name, keys, *numbers = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), *numbers],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore(kept: dict[str, Any], device: torch.device) -> None:
    random.setstate(kept["python"])
    name, keys, *numbers = kept["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *numbers))
    torch.set_rng_state(kept["torch"])
    if device.type == "cuda" and kept["cuda"] is not None:
        torch.cuda.set_rng_state(kept["cuda"], device)
