"""RunPod's REST API v2: one method for each kind of request, which returns a document or raises one of our errors.

A request that creates is sent once. One that reads is retried a few times within a minute, and as late as RunPod says
where it wants fewer requests. No error holds the API key, which an answer may have repeated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from gpuops.core.errors import ProviderError, Unknown, UsageError
from gpuops.core.polling import Clock
from provisioners.base import NOTHING
from provisioners.runpod import credentials, http_client
from provisioners.runpod.errors import failure, other_shape, retry_after_s
from provisioners.runpod.http_client import Answer, HttpClient, NoAnswer, Request

Document = Mapping[str, Any]
"""A JSON object of RunPod's. Whoever asked for it turns it into a type of ours."""

CALL_TIMEOUT_S = http_client.CONNECT_TIMEOUT_S + http_client.ANSWER_TIMEOUT_S
"""The contract allows a request a minute."""
GRAPHQL_TIMEOUT_S = 20.0
READ_ATTEMPTS_S = 55.0
"""All attempts of one GET together."""
RETRY_AFTER_TOTAL_S = 65.0
"""All waits of one GET that RunPod asked for (`Retry-After`), beside its attempts: RunPod's shortest window is a
minute."""
RETRY_DELAYS_S = (0.5, 1.5)
MIN_RETRY_AFTER_S = 1.0
"""The shortest wait, where RunPod says `Retry-After: 0`."""
MAX_PAGES = 100
CURSORS = ("nextCursor", "next_cursor", "cursor", "nextPageToken", "next")
CURSOR_PLACES = ("pagination", "meta", "page", "pageInfo")


class Api:
    """May be used from any thread. Construction touches nothing; errors are ProviderError and UsageError.

    `doing`, in every method: what an error says was tried, such as `list pods`.
    """

    def __init__(self, env: Mapping[str, str], dotenv: Mapping[str, str] = NOTHING, clock: Clock | None = None) -> None:
        self._env = env
        self._dotenv = dotenv
        self._clock = clock or Clock()
        self._http = HttpClient(env, self._clock)

    @property
    def key(self) -> str:
        return credentials.key(self._env, self._dotenv)

    @property
    def base(self) -> str:
        return credentials.address(self._env)

    def server_time(self) -> float | None:
        """RunPod's time now (UTC seconds), as its last answer told it."""
        return self._http.server_clock.now()

    # Reading.

    def get(self, path: str, doing: str, **query: Any) -> Any:
        """GET a path. Returns the parsed JSON."""
        return self._parse_json(self._get_with_retries(_with_query(path, query), doing), doing)

    def get_or_none(self, path: str, doing: str) -> Document | None:
        """GET an object that has an `id`; None for a 404."""
        answer = self._get_with_retries(path, doing, absent_is_answer=True)
        return None if answer.status == 404 else self._parse_object(answer, doing)

    def pages(self, path: str, name: str, doing: str, **query: Any) -> list[Document]:
        """The list `name` of an answer, with all its pages; each entry has an `id`. Raises Unknown rather than return
        some of them."""
        found: dict[str, Document] = {}
        next_page: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            document = self.get(path, doing, **query, **next_page)
            page = document.get(name) if isinstance(document, dict) else None
            if not isinstance(page, list) or not all(isinstance(item, dict) and item.get("id") for item in page):
                raise self._unreadable(document, doing)
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
        request = self._request("GET", _with_query(path, query), limit_s, is_stream=True)
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

    # Changing.

    def post(self, path: str, body: Document, doing: str) -> Document:
        """Create something; sent once, by a connection of its own: a kept one may be cut just then, and what the
        request did would not be known. Every error but Unknown means that nothing was created."""
        content = json.dumps(body).encode()
        request = self._request("POST", path, CALL_TIMEOUT_S, body=content, new_connection=True)
        return self._parse_object(self._send_once(request, doing, creating=True), doing)

    def delete(self, path: str, doing: str) -> int:
        """The status: 2xx, 404 where it is gone already, 409 where it cannot go this way."""
        return self._send_once(self._request("DELETE", path, CALL_TIMEOUT_S), doing, accepted=(404, 409)).status

    # One request.

    def _request(self, method: str, path: str, limit_s: float, **options: Any) -> Request:
        return Request(method, self.base + path, self.key, limit_s, **options)

    def _send_once(
        self, request: Request, doing: str, *, creating: bool = False, accepted: Sequence[int] = ()
    ) -> Answer:
        """One request without a retry. Raises the error of an answer that is neither success nor `accepted`."""
        try:
            answer = self._http.send(request)
        except NoAnswer as error:
            raise self._unanswered(str(error), doing) from error
        if answer.status < 300 or answer.status in accepted:
            return answer
        raise self._refused(answer, doing, creating=creating)

    def _get_with_retries(self, path: str, doing: str, *, absent_is_answer: bool = False) -> Answer:
        """A GET with retries: a few for what may pass, and as late as RunPod says where it wants fewer requests.

        absent_is_answer   whether a 404 is returned, rather than raised
        """
        deadline, patience_s = self._clock.monotonic() + READ_ATTEMPTS_S, RETRY_AFTER_TOTAL_S
        delays = list(RETRY_DELAYS_S)
        while True:
            error: ProviderError
            retry_after: float | None = None
            try:
                answer = self._http.send(self._request("GET", path, deadline - self._clock.monotonic()))
                if answer.status < 300 or (absent_is_answer and answer.status == 404):
                    return answer
                error = self._refused(answer, doing)
                retry_after = retry_after_s(answer.headers) if answer.status in (429, 503) else None
            except NoAnswer as no_answer:
                error = self._unanswered(str(no_answer), doing)
            if retry_after is not None and (wait_s := max(retry_after, MIN_RETRY_AFTER_S)) <= patience_s:
                patience_s, deadline = patience_s - wait_s, deadline + wait_s
                self._clock.sleep(wait_s)
                continue
            may_pass = isinstance(error, Unknown) and bool(delays)
            left_s = deadline - self._clock.monotonic()
            if not may_pass or left_s < http_client.CONNECT_TIMEOUT_S + delays[0]:
                raise error
            self._clock.sleep(delays.pop(0))

    # Answers and errors.

    def _parse_object(self, answer: Answer, doing: str) -> Document:
        """The object in an answer. Raises Unknown where it has no `id`."""
        document = self._parse_json(answer, doing)
        if not isinstance(document, dict) or not document.get("id"):
            raise self._unreadable(document, doing)
        return document

    def _parse_json(self, answer: Answer, doing: str) -> Any:
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise self._unreadable(None, doing) from None

    def _unreadable(self, document: Any, doing: str) -> ProviderError:
        wrong = other_shape(document)
        if wrong:
            return self._without_key(Unknown(wrong, f"unset RUNPOD_API_URL, or set it to {credentials.API}"))
        return self._unanswered("what it answered cannot be read", doing)

    def _unanswered(self, why: str, doing: str) -> ProviderError:
        return self._without_key(Unknown(f"RunPod was asked to {doing}: {why}", "check the network, and try again"))

    def _refused(self, answer: Answer, doing: str, *, creating: bool = False) -> ProviderError:
        return self._without_key(failure(answer.status, answer.headers, answer.body, doing, creating=creating))

    def _without_key(self, error: ProviderError) -> ProviderError:
        error.message = error.message.replace(self.key, "…")
        error.args = (error.message,)
        return error


def path_segment(name: str) -> str:
    """A name as a part of a path, whatever it holds."""
    return quote(name, safe="")


def _with_query(path: str, query: Document) -> str:
    """A path with its query; a parameter that is None is left out."""
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }
    return f"{path}?{urlencode(given)}" if given else path


def _next_cursor(document: Document) -> str:
    """Where the next page begins; empty on the last one."""
    for place in (document, *(inner(document, name) for name in CURSOR_PLACES)):
        for name in CURSORS:
            if isinstance(cursor := place.get(name), str) and cursor:
                return cursor
    return ""


# Parts of a document; what is missing, or of another type, counts as not said.


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
    """A finite number, which RunPod also writes as text; 0 where it is not said."""
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return found if math.isfinite(found) else 0.0
