"""A provider's JSON API: one method for each kind of request, which returns a document or raises one of our errors.

A request that creates is sent once, and one that is not answered is Unknown: it may have happened. One that reads is
retried a few times within a minute, and as late as the provider says where it wants fewer requests. No error holds the
API key, which an answer may have repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

from gpuops.core.errors import AuthFailed, ProviderError, Unknown
from provisioners.base import Context, Credential
from provisioners.kit import http_client
from provisioners.kit.documents import Document, inner, parse_document
from provisioners.kit.error_table import because
from provisioners.kit.http_api import retry_after_s
from provisioners.kit.http_client import Answer, HttpClient, NoAnswer, Request
from provisioners.kit.pacing import Pace, pace_file
from provisioners.kit.service import Service, fingerprint

CALL_TIMEOUT_S = http_client.CONNECT_TIMEOUT_S + http_client.ANSWER_TIMEOUT_S
"""The contract allows a request a minute."""
READ_ATTEMPTS_S = 55.0
"""All attempts of one GET together."""
RETRY_AFTER_TOTAL_S = 65.0
"""All waits of one GET that the provider asked for (`Retry-After`), beside its attempts."""
RETRY_DELAYS_S = (0.5, 1.5)
MIN_RETRY_AFTER_S = 1.0
"""The shortest wait, where a provider says `Retry-After: 0`."""
MAX_PAGES = 400


class RefusedAndMade(Exception):
    """A request that was refused, and made something all the same, which bills."""

    def __init__(self, made: str, refusal: ProviderError) -> None:
        super().__init__(refusal.message)
        self.made = made
        """Its id."""
        self.refusal = refusal


class JsonApi:
    """May be used from any thread. Construction touches nothing; errors are ProviderError and UsageError.

    `doing`, in every method: what an error says was tried, such as `list pods`.
    """

    def __init__(self, service: Service, context: Context) -> None:
        self.service = service
        self._context = context
        self._clock = context.clock
        self._http = HttpClient(context.env, context.clock)

    def find_key(self) -> Credential:
        """The key and where it comes from. Raises NotSetUp, AuthFailed."""
        return self.service.find_key(self._context)

    @property
    def key(self) -> str:
        return self.find_key().values[self.service.key_variable]

    @property
    def address(self) -> str:
        """What stands before every path. Raises UsageError."""
        return self.service.find_address(self._context.env)

    def pace(self, what: str, apart_s: float) -> Pace:
        """Turns of this account that are so far apart; `what`: `launches`."""
        path = pace_file(self._context.home, self.service.name.lower(), fingerprint(self.key), what)
        return Pace(path, apart_s, self._clock)

    def server_time(self) -> float | None:
        """The provider's time now (UTC seconds), as its last answer told it."""
        return self._http.server_clock.now()

    # Reading.

    def get(self, path: str, doing: str, **query: Any) -> Any:
        """GET a path. Returns the parsed JSON."""
        return self.parse_json(self._get_with_retries(with_query(path, query), doing), doing)

    def get_or_none(self, path: str, doing: str) -> Any:
        """The same; None for a 404, and for nothing else: success without a word is no end of anything. Nor is a 404
        that is about the key."""
        answer = self._get_with_retries(path, doing, absent_is_answer=True)
        if answer.status == 404:
            if isinstance(refused := self.refused(answer, doing), AuthFailed):
                raise refused
            return None
        if (document := self.parse_json(answer, doing)) is None:
            raise self.unreadable(None, doing)
        return document

    def find_object(self, path: str, doing: str, name: str = "") -> Document | None:
        """GET an object that has an `id`; None for a 404, and where the answer has `null` under `name`.

        name   of the object in the answer; empty: it is the answer
        """
        document = self.get_or_none(path, doing)
        if document is not None and name:
            document = document.get(name, {}) if isinstance(document, dict) else document
        return None if document is None else self.require_object(document, doing)

    def list_objects(
        self,
        path: str,
        doing: str,
        name: str = "",
        next_page: Callable[[Document], Document] = lambda _: {},
        **query: Any,
    ) -> list[Document]:
        """A list with all its pages; each entry has an `id`. Raises Unknown rather than return some of them.

        name       of the list in the answer; empty: it is the answer
        next_page  what is added to the query for the page after an answer's; empty after the last one
        """
        found: dict[str, Document] = {}
        turn: Document = {}
        for _ in range(MAX_PAGES):
            document = self.get(path, doing, **{**query, **turn})
            page = document
            if name:
                page = document.get(name) if isinstance(document, dict) else None
            if not isinstance(page, list) or not all(isinstance(item, dict) and item.get("id") for item in page):
                raise self.unreadable(document, doing)
            fresh = {str(item["id"]): item for item in page if str(item["id"]) not in found}
            found |= fresh
            turn = next_page(document) if name else {}
            if not turn:
                return list(found.values())
            if not fresh:
                break
        raise Unknown(f"{self.service.name} lists in pages that gpuops cannot turn, to {doing}", "upgrade gpuops")

    # Changing.

    def post(self, path: str, body: Document, doing: str, *, creating: bool = True) -> Any:
        """Sent once. Every error but Unknown means that nothing was done."""
        return self.parse_json(self.change("POST", path, body, doing, creating=creating), doing)

    def create(
        self,
        path: str,
        body: Document,
        doing: str,
        name: str = "id",
        method: str = "POST",
        *,
        may_make_and_refuse: bool = False,
    ) -> str:
        """The id of what one request has made, which the answer has as `name`. Every error but Unknown means that
        nothing was made, and RefusedAndMade that it was.

        may_make_and_refuse   whether a refusal that has that `name`, too, tells of something that was made: in others
                              it may be a number of the request's own
        """
        answer = self.change(method, path, body, doing, accepted=range(400, 500))
        document = parse_document(answer.body.decode(errors="replace"))
        told: Document = document if isinstance(document, dict) else {}
        made = str(told.get(name) or "")
        if answer.status < 300 and told.get("success") is not False:
            if not made:
                raise self.unreadable(document, doing)
            return made
        refusal = self.refused(answer, doing, creating=True)
        raise RefusedAndMade(made, refusal) if made and may_make_and_refuse else refusal

    def change(
        self, method: str, path: str, body: Document, doing: str, *, creating: bool = True, accepted: Sequence[int] = ()
    ) -> Answer:
        """A request that is sent once, by a connection of its own: a kept one may be cut just then, and what the
        request did would not be known. Its answer of success, or with one of the statuses `accepted`."""
        content = json.dumps(body).encode()
        request = self._request(method, path, CALL_TIMEOUT_S, body=content, new_connection=True)
        return self._send_once(request, doing, creating=creating, accepted=accepted)

    def delete(
        self,
        path: str,
        doing: str,
        accepted: Sequence[int] = (404,),
        method: str = "DELETE",
        body: Document | None = None,
    ) -> int:
        """What may be asked for again. The status: 2xx, or one of `accepted` (404: it is gone already)."""
        content = None if body is None else json.dumps(body).encode()
        request = self._request(method, path, CALL_TIMEOUT_S, body=content)
        return self._send_once(request, doing, accepted=accepted).status

    # One request.

    def _request(self, method: str, path: str, limit_s: float, **options: Any) -> Request:
        return Request(method, self.address + path, self.key, limit_s, **options)

    def _send(self, request: Request) -> Answer:
        if self.service.requests_apart_s:
            self.pace("requests", self.service.requests_apart_s).wait()
        return self._http.send(request)

    def _send_once(
        self, request: Request, doing: str, *, creating: bool = False, accepted: Sequence[int] = ()
    ) -> Answer:
        """One request without a retry. Raises the error of an answer that is neither success nor `accepted`."""
        try:
            answer = self._send(request)
        except NoAnswer as error:
            raise self.unanswered(str(error), doing) from error
        if answer.status < 300 or answer.status in accepted:
            return answer
        raise self.refused(answer, doing, creating=creating)

    def _get_with_retries(self, path: str, doing: str, *, absent_is_answer: bool = False) -> Answer:
        """A GET with retries: a few for what may pass, and as late as the provider says where it wants fewer requests.

        absent_is_answer   whether a 404 is returned, rather than raised
        """
        deadline, patience_s = self._clock.monotonic() + READ_ATTEMPTS_S, RETRY_AFTER_TOTAL_S
        delays = list(RETRY_DELAYS_S)
        while True:
            error: ProviderError
            retry_after: float | None = None
            try:
                answer = self._send(self._request("GET", path, deadline - self._clock.monotonic()))
                if answer.status < 300 or (absent_is_answer and answer.status == 404):
                    return answer
                error = self.refused(answer, doing)
                retry_after = self._wanted_wait_s(answer)
            except NoAnswer as no_answer:
                error = self.unanswered(str(no_answer), doing)
            if retry_after is not None and (wait_s := max(retry_after, MIN_RETRY_AFTER_S)) <= patience_s:
                patience_s, deadline = patience_s - wait_s, deadline + wait_s
                self._clock.sleep(wait_s)
                continue
            may_pass = isinstance(error, Unknown) and bool(delays)
            left_s = deadline - self._clock.monotonic()
            if not may_pass or left_s < http_client.CONNECT_TIMEOUT_S + delays[0]:
                raise error
            self._clock.sleep(delays.pop(0))

    def _wanted_wait_s(self, answer: Answer) -> float | None:
        if answer.status not in (429, 503):
            return None
        said = retry_after_s(answer.headers)
        return self.service.wait_at_429_s if said is None and answer.status == 429 else said

    # Answers and errors.

    def parse_json(self, answer: Answer, doing: str) -> Any:
        """What is in the envelope, where there is one. Raises Unknown for what is no JSON, and for success that says
        `"success": false`, whatever stands beside it; an empty answer of success is None."""
        if not answer.body.strip() and not self.service.envelope:
            return None
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            raise self.unreadable(None, doing) from None
        if isinstance(document, dict) and document.get("success") is False:
            words = self.service.read_words(answer.status, document, "").message
            raise self.unanswered(f"it failed{because(words)}", doing)
        if not self.service.envelope:
            return document
        if not isinstance(document, dict) or document.get(self.service.envelope) is None:
            raise self.unreadable(document, doing)
        return document[self.service.envelope]

    def require_object(self, document: Any, doing: str) -> Document:
        """Raises Unknown where it is none with an `id`."""
        if not isinstance(document, dict) or not document.get("id"):
            raise self.unreadable(document, doing)
        return document

    def unreadable(self, document: Any, doing: str) -> ProviderError:
        """The error for an answer of success that is not what was asked for."""
        return self.unanswered("what it answered cannot be read", doing)

    def unanswered(self, why: str, doing: str) -> ProviderError:
        name = self.service.name
        return self._without_key(Unknown(f"{name} was asked to {doing}: {why}", "check the network, and try again"))

    def refused(self, answer: Answer, doing: str, *, creating: bool = False) -> ProviderError:
        failure = self.service.failure(answer.status, answer.headers, answer.body, doing, creating=creating)
        return self._without_key(failure)

    def _without_key(self, error: ProviderError) -> ProviderError:
        with suppress(ProviderError):  # its file may be gone by now, which changes nothing about what was done
            error.message = error.message.replace(self.key, "…")
        error.args = (error.message,)
        return error


def next_by(tokens: Sequence[str], parameter: str, places: Sequence[str] = ()) -> Callable[[Document], Document]:
    """For `list_objects`: the next page is asked for by a parameter with the token that an answer has.

    tokens   names that it may have
    places   parts of the answer where it may be, beside its top
    """

    def next_page(document: Document) -> Document:
        for place in (document, *(inner(document, name) for name in places)):
            for name in tokens:
                if isinstance(token := place.get(name), str) and token:
                    return {parameter: token}
        return {}

    return next_page


def path_segment(name: str) -> str:
    """A name as a part of a path, whatever it holds. `.` and `..` would be a folder."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def with_query(path: str, query: Document) -> str:
    """A path with its query; a parameter that is None is left out."""
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }
    return f"{path}?{urlencode(given)}" if given else path
