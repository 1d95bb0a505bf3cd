"""Kingfisher with a memory, for commands that tests start by the thousand, most of them to send the same files.

The engine takes half a second of a core to load, and is loaded only for bytes that it has not searched before. A Python
whose path begins with FOLDER finds this in the place of the engine; tests/integration/fakes/test_kingfisher.py holds it
to that.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
