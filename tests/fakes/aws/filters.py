"""The filters of EC2's Describe calls, with `*` and `?`, and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from tests.fakes.aws.requests import Refusal

T = TypeVar("T")
Value = str | Sequence[str] | None


def fits(filters: Any, values: Mapping[str, Value], tags: Mapping[str, str]) -> bool:
    """Whether something with these values and tags passes all filters; a filter nobody knows is refused."""
    for one in filters or []:
        name, wanted = one["Name"], one.get("Values", [])
        if name.startswith("tag:"):
            found: Value = tags.get(name[4:])
        elif name == "tag-key":
            found = list(tags)
        elif name in values:
            found = values[name]
        else:
            raise Refusal("InvalidParameterValue", f"The filter '{name}' is invalid")
        has = [] if found is None else [found] if isinstance(found, str) else list(found)
        if not any(fnmatchcase(value, pattern.replace("[", "[[]")) for value in has for pattern in wanted):
            return False
    return True


def page(rows: Sequence[T], parameters: Mapping[str, Any], most: int) -> tuple[list[T], str | None]:
    """One page, and the mark of the next."""
    size = min(int(parameters.get("MaxResults") or most), most)
    mark = parameters.get("NextToken") or "0"
    if not mark.removeprefix("page-").isdigit():
        raise Refusal("InvalidNextToken", "The specified token is not valid.")
    first = int(mark.removeprefix("page-"))
    more = first + size < len(rows)
    return list(rows[first : first + size]), f"page-{first + size}" if more else None
