"""A vendor's own description of its API as a judge over a fake, where it lies beside the checkout.

    <checkout>/../shared/specs/runpod-openapi-v2.json

Every request's body and every answer is held against it: a fake that drifts from the description fails its tests.
Where the file is missing nothing is judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

FOLDER = Path(__file__).resolve().parents[3] / "shared/specs"


class Request(Protocol):
    method: str
    path: str
    """Without the prefix."""
    body: Any


class Answer(Protocol):
    status: int
    body: Any
    """For JSON; None: no body."""
    content_type: str


class Spec:
    """prefix         what stands before each path: `/v2`
    refused        whether an answer says that a body is not well made
    names_failures whether the description has every status that a failure may have
    """

    def __init__(
        self,
        document: dict[str, Any],
        prefix: str = "",
        refused: Callable[[Any], bool] = lambda _: False,
        *,
        names_failures: bool = True,
    ) -> None:
        from jsonschema import Draft202012Validator
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012

        self._paths = {
            re.compile(re.sub(r"{\w+}", "[^/]+", path)): operations for path, operations in document["paths"].items()
        }
        resource = DRAFT202012.create_resource(document)
        self._registry: Any = Registry().with_resource("urn:api", resource)
        self._document = document
        self._validator = Draft202012Validator
        self._prefix = prefix
        self._refused = refused
        self._names_failures = names_failures

    def _operation(self, request: Request) -> dict[str, Any] | None:
        # A path without parameters goes before one with: /pods before /pods/{id}.
        path = f"{self._prefix}{request.path}"
        for pattern, operations in sorted(self._paths.items(), key=lambda one: one[0].pattern.count("[^/]+")):
            if pattern.fullmatch(path):
                found: dict[str, Any] | None = operations.get(request.method.lower())
                return found
        return None

    def _wrong(self, schema: Any, value: Any) -> list[str]:
        pointed = json.loads(json.dumps(schema).replace('"#/components/', '"urn:api#/components/'))
        validator = self._validator(pointed, registry=self._registry)
        return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(value)]

    def _resolve(self, node: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in node:
            return node
        found = self._document
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return found

    def mismatches(self, request: Request, answer: Answer) -> list[str]:
        """Sentences about what the fake did and the description does not allow."""
        operation = self._operation(request)
        if operation is None:
            wrong = [] if answer.status in (404, 405) else ["there is no such operation"]
        else:
            wrong = self._of_request(operation, request, answer) + self._of_answer(operation, answer)
        return [f"{request.method} {request.path} {answer.status}: {one}" for one in wrong]

    def _of_request(self, operation: dict[str, Any], request: Request, answer: Answer) -> list[str]:
        """The fake and the description agree about whether a body is well made."""
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if not content or answer.status in (401, 403, 429):
            return []
        wrong = self._wrong(content["schema"], request.body)
        if wrong and answer.status < 300:
            return [f"the fake took a body that is wrong: {wrong}"]
        if not wrong and self._refused(answer):
            return [f"the fake refused a body that is right: {answer.body}"]
        return []

    def _of_answer(self, operation: dict[str, Any], answer: Answer) -> list[str]:
        responses = operation["responses"]
        described = responses.get(str(answer.status)) or (responses.get("default") if answer.status >= 300 else None)
        if described is None:
            return ["no such status"] if self._names_failures or answer.status < 300 else []
        response = self._resolve(described)
        content = response.get("content", {})
        if not content:
            return ["a body where there is none"] if answer.body is not None else []
        if answer.content_type not in content:
            return [f"content type {answer.content_type}"]
        if getattr(answer, "follow", None):  # a stream
            return []
        return self._wrong(content[answer.content_type]["schema"], answer.body)


@cache
def description(name: str) -> dict[str, Any] | None:
    """A description, JSON or YAML, read once; None where there is none, or YAML cannot be read."""
    file = FOLDER / name
    if not file.is_file():
        return None
    if file.suffix == ".json":
        return json.loads(file.read_text())
    try:
        import yaml
    except ImportError:
        return None
    return yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
