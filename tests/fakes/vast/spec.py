"""The vendor's own description of the API as a judge over the fake, where it lies beside the checkout.

    <checkout>/../shared/specs/vast-openapi.yaml

Where the file is missing, or YAML cannot be read, nothing is judged. What the vendor's own client proves to be wrong in
the description is taken out of it first.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from tests.fakes.vast.server import Answer, Request

FILE = Path(__file__).resolve().parents[4] / "shared/specs/vast-openapi.yaml"
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


class Spec:
    def __init__(self, document: dict[str, Any]) -> None:
        from jsonschema import Draft202012Validator
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012

        for path, names in MISDESCRIBED.items():
            for operation in document["paths"][path].values():
                _forget(operation, names)
        _forget(document, MISDESCRIBED_INSTANCE)
        self._document = document
        self._registry: Any = Registry().with_resource("urn:api", DRAFT202012.create_resource(document))
        self._validator = Draft202012Validator

    def mismatches(self, request: Request, answer: Answer) -> list[str]:
        """Sentences about what the fake did and the description does not allow."""
        if request.path in UNDESCRIBED or answer.body == GONE:
            return []
        operation = self._operation(request)
        if operation is None:
            wrong = [] if answer.status == 404 else ["there is no such operation"]
        else:
            content = operation.get("requestBody", {}).get("content", {})
            wrong = self._wrong(content, request.body) if answer.status < 300 else []
            described = operation["responses"].get(str(answer.status))
            if described:
                wrong += self._wrong(described.get("content", {}), answer.body)
            elif answer.status < 300:
                wrong.append("no such status")
        return [f"{request.method} {request.path} {answer.status}: {one}" for one in wrong]

    def _operation(self, request: Request) -> dict[str, Any] | None:
        path = f"/api/{request.version}{request.path}"
        # A path without parameters goes before one with.
        for described, operations in sorted(self._document["paths"].items(), key=lambda one: one[0].count("{")):
            if re.fullmatch(re.sub(r"{\w+}", "[^/]+", described), path):
                found: dict[str, Any] | None = operations.get(request.method.lower())
                return found
        return None

    def _wrong(self, content: dict[str, Any], value: Any) -> list[str]:
        if "application/json" not in content:
            return []
        schema = content["application/json"]["schema"]
        pointed = json.loads(json.dumps(schema).replace('"#/components/', '"urn:api#/components/'))
        validator = self._validator(pointed, registry=self._registry)
        return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(value)]


def _forget(node: Any, names: tuple[str, ...]) -> None:
    if isinstance(node, dict):
        properties = node.get("properties")
        for name in names if isinstance(properties, dict) else ():
            properties.pop(name, None)
        for value in node.values():
            _forget(value, names)


@cache
def found() -> Spec | None:
    """The description, read once; None where there is none."""
    if not FILE.is_file():
        return None
    try:
        import yaml
    except ImportError:
        return None
    return Spec(yaml.load(FILE.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
