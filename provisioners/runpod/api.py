"""RunPod's REST API v2, by the kit's `JsonApi`: its pages, its streams, and the one GraphQL question."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpuops.core.errors import ProviderError, Unknown, UsageError
from gpuops.core.polling import Clock
from provisioners.base import NOTHING
from provisioners.kit.documents import Document, inner
from provisioners.kit.http_client import NoAnswer, Request
from provisioners.kit.json_api import JsonApi, Service, with_query
from provisioners.runpod import credentials
from provisioners.runpod.errors import failure, other_shape

GRAPHQL_TIMEOUT_S = 20.0
MAX_PAGES = 100
CURSORS = ("nextCursor", "next_cursor", "cursor", "nextPageToken", "next")
CURSOR_PLACES = ("pagination", "meta", "page", "pageInfo")


class Api(JsonApi):
    """May be used from any thread. Construction touches nothing; errors are ProviderError and UsageError."""

    def __init__(self, env: Mapping[str, str], dotenv: Mapping[str, str] = NOTHING, clock: Clock | None = None) -> None:
        self._env = env
        self._dotenv = dotenv
        super().__init__(Service("RunPod", lambda: self.base, lambda: self.key, failure), env, clock or Clock())

    @property
    def key(self) -> str:
        return credentials.key(self._env, self._dotenv)

    @property
    def base(self) -> str:
        return credentials.address(self._env)

    def find_object(self, path: str, doing: str) -> Document | None:
        """GET an object that has an `id`; None for a 404."""
        document = self.get_or_none(path, doing)
        return None if document is None else self._require_object(document, doing)

    def create_object(self, path: str, body: Document, doing: str) -> Document:
        """POST, for an object that has an `id`."""
        return self._require_object(self.post(path, body, doing), doing)

    def pages(self, path: str, name: str, doing: str, **query: Any) -> list[Document]:
        """The list `name` of an answer, with all its pages; each entry has an `id`. Raises Unknown rather than return
        some of them."""
        found: dict[str, Document] = {}
        next_page: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            document = self.get(path, doing, **query, **next_page)
            page = document.get(name) if isinstance(document, dict) else None
            if not isinstance(page, list) or not all(isinstance(item, dict) and item.get("id") for item in page):
                raise self.unreadable(document, doing)
            fresh = {str(item["id"]): item for item in page if str(item["id"]) not in found}
            found |= fresh
            cursor = _next_cursor(document)
            if not cursor:
                return list(found.values())
            if not fresh:
                break
            next_page = {"cursor": cursor}
        raise Unknown(f"RunPod lists in pages that gpuops cannot turn, to {doing}", "upgrade gpuops")

    def read_stream(self, path: str, limit_s: float, doing: str, **query: Any) -> bytes:
        """What a stream sends within the limit: it may not end by itself."""
        request = self._request("GET", with_query(path, query), limit_s, is_stream=True)
        return self._send_once(request, doing).body

    def graphql(self, query: str) -> Document:
        """The `data` of a GraphQL answer (RunPod ends this API in early 2027); {} for any failure."""
        body = json.dumps({"query": query}).encode()
        try:
            url = f"{credentials.graphql_base(self._env)}/graphql"
            answer = self._http.send(Request("POST", url, self.key, GRAPHQL_TIMEOUT_S, body))
            data = json.loads(answer.body).get("data")
        except (NoAnswer, UsageError, ProviderError, ValueError, AttributeError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}

    def unreadable(self, document: Any, doing: str) -> ProviderError:
        if wrong := other_shape(document):
            return self._without_key(Unknown(wrong, f"unset RUNPOD_API_URL, or set it to {credentials.API}"))
        return super().unreadable(document, doing)

    def _require_object(self, document: Any, doing: str) -> Document:
        """Raises Unknown where it has no `id`."""
        if not isinstance(document, dict) or not document.get("id"):
            raise self.unreadable(document, doing)
        return document


def _next_cursor(document: Document) -> str:
    """Where the next page begins; empty on the last one."""
    for place in (document, *(inner(document, name) for name in CURSOR_PLACES)):
        for name in CURSORS:
            if isinstance(cursor := place.get(name), str) and cursor:
                return cursor
    return ""
