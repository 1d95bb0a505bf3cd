"""Parts of a provider's JSON. What is missing, or of another type, counts as not said."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]
"""A JSON object of a provider's. Whoever asked for it turns it into a type of ours."""


def parse_document(text: str) -> Any:
    """A text as JSON; None for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def inner(document: Document, name: str) -> Document:
    """An object in a document; empty where it is not said."""
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def entries(document: Document, name: str) -> list[Any]:
    """A list in a document; empty where it is not said."""
    found = document.get(name)
    return found if isinstance(found, list) else []


def objects(document: Document, name: str) -> list[Document]:
    """The objects of a list in a document."""
    return [item for item in entries(document, name) if isinstance(item, dict)]


def number(value: object) -> float:
    """A finite number, which providers also write as text; 0 where it is not said."""
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return found if math.isfinite(found) else 0.0


def price(value: object) -> float:
    """What costs something: a `number` above 0, else 0, which is no price."""
    return max(number(value), 0.0)
