"""RunPod's REST API v2, by the kit's `JsonApi`: its pages, its streams, and its GraphQL questions."""

from __future__ import annotations

import json
from typing import Any

from gpuops.core.errors import ProviderError, Unknown, UsageError
from provisioners.kit.documents import Document
from provisioners.kit.http_client import NoAnswer, Request
from provisioners.kit.json_api import JsonApi, next_by, with_query
from provisioners.runpod.errors import other_shape
from provisioners.runpod.service import graphql_base

GRAPHQL_TIMEOUT_S = 20.0
NEXT_PAGE = next_by(
    ("nextCursor", "next_cursor", "cursor", "nextPageToken", "next"),
    "cursor",
    ("pagination", "meta", "page", "pageInfo"),
)


class Api(JsonApi):
    """May be used from any thread. Construction touches nothing; errors are ProviderError and UsageError."""

    def pages(self, path: str, name: str, doing: str, **query: Any) -> list[Document]:
        """The list `name` of an answer, with all its pages; each entry has an `id`."""
        return self.list_objects(path, doing, name, NEXT_PAGE, **query)

    def create_object(self, path: str, body: Document, doing: str) -> Document:
        """POST, for an object that has an `id`."""
        return self.require_object(self.post(path, body, doing), doing)

    def read_stream(self, path: str, limit_s: float, doing: str, **query: Any) -> bytes:
        """What a stream sends within the limit: it may not end by itself."""
        request = self._request("GET", with_query(path, query), limit_s, is_stream=True)
        return self._send_once(request, doing).body

    def graphql(self, query: str) -> Document:
        """The `data` of a GraphQL answer (RunPod ends this API in early 2027); {} for any failure."""
        body = json.dumps({"query": query}).encode()
        try:
            url = f"{graphql_base(self._context.env)}/graphql"
            answer = self._http.send(Request("POST", url, self.key, GRAPHQL_TIMEOUT_S, body))
            data = json.loads(answer.body).get("data")
        except (NoAnswer, UsageError, ProviderError, ValueError, AttributeError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}

    def unreadable(self, document: Any, doing: str) -> ProviderError:
        if wrong := other_shape(document):
            hint = f"unset {self.service.address_variable}, or set it to {self.service.address}"
            return self._without_key(Unknown(wrong, hint))
        return super().unreadable(document, doing)
