"""Vast.ai's description of its API, as the judge over the fake. What Vast.ai's own client proves to be wrong in it is
taken out of it first."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from tests.fakes.openapi import Spec, description
from tests.fakes.vast.server import Answer, Request

UNDESCRIBED = ("/gpu_names/unique",)
"""What the vendor's client asks for, and the description lacks."""
GONE = {"instances": None}
"""What is destroyed, as the vendor's client reads it; the description knows an object alone."""
MISDESCRIBED_INSTANCE = ("ports", "extra_env", "public_ipaddr")
"""An object by port; pairs; null as long as there is none, the least kind of all that it may be then."""
MISDESCRIBED: dict[str, tuple[str, ...]] = {
    "/api/v0/bundles": ("type", "order"),  # the client sends `on-demand`, and one pair to sort by
    "/api/v0/asks/{id}": ("env", "runtype"),  # an object; the two words `ssh_direc ssh_proxy`
}


def mismatches(request: Request, answer: Answer) -> list[str]:
    """Sentences about what the fake did and the description does not allow."""
    spec = _found()
    if spec is None or request.path in UNDESCRIBED or answer.body == GONE:
        return []
    return spec.mismatches(dataclasses.replace(request, path=f"/api/{request.version}{request.path}"), answer)


@cache
def _found() -> Spec | None:
    document = description("vast-openapi.yaml")
    if document is None:
        return None
    for path, names in MISDESCRIBED.items():
        for operation in document["paths"][path].values():
            _forget(operation, names)
    _forget(document, MISDESCRIBED_INSTANCE)
    return Spec(document, names_failures=False)


def _forget(node: Any, names: tuple[str, ...]) -> None:
    if isinstance(node, dict):
        properties = node.get("properties")
        for name in names if isinstance(properties, dict) else ():
            properties.pop(name, None)
        for value in node.values():
            _forget(value, names)
