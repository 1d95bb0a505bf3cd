"""Fixtures of the command line's unit tests."""

from __future__ import annotations

from tests.desk import desk, moon  # noqa: F401
