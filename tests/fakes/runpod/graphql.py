"""The one query of the older interface that is served: who am I, what money is left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Selection = dict[str, "Selection"]


class Malformed(Exception):
    """What a GraphQL server says about a query."""


def parse(query: str) -> Selection:
    """`query { myself { id pods { id } } }` as nested dicts. Arguments, aliases and fragments are not served."""
    words = iter(re.findall(r"[{}]|[A-Za-z_]\w*", re.sub(r"#.*", "", query)))
    first = next(words, "")
    if first == "mutation":
        raise Malformed("no mutation is served here")
    while first not in ("{", ""):
        first = next(words, "")
    if not first:
        raise Malformed("Syntax Error: Unexpected <EOF>.")
    return _selection(words)


def _selection(words: Iterator[str]) -> Selection:
    found: Selection = {}
    last = ""
    for word in words:
        if word == "}":
            return found
        if word == "{":
            found[last] = _selection(words)
        else:
            last = word
            found[last] = {}
    raise Malformed("Syntax Error: Expected Name, found <EOF>.")


def select(value: Any, wanted: Selection, kind: str = "Query") -> Any:
    if isinstance(value, list):
        return [select(one, wanted, kind) for one in value]
    if not isinstance(value, dict):
        return value
    for name in wanted:
        if name not in value:
            raise Malformed(f'Cannot query field "{name}" on type "{kind}".')
    return {name: select(value[name], inner, "User" if name == "myself" else name) for name, inner in wanted.items()}
