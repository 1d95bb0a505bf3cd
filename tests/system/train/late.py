"""Modules that load when they are first used: every worker collects all tests, and torch takes each two seconds."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any


class Late:
    """Such a module."""

    def __init__(self, load: Callable[[], ModuleType]) -> None:
        self._load = functools.cache(load)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest's questions to all that a file of tests names
            raise AttributeError(name)
        return getattr(self._load(), name)


def late_import(name: str) -> Late:
    return Late(lambda: importlib.import_module(name))


torch = late_import("torch")
