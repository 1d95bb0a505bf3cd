"""Which function serves which path, and what a key may not ask for."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.fakes.runpod.problems import Refusal, not_found
from tests.fakes.runpod.requests import Answer, Caller, Request
from tests.fakes.runpod.service import Service

Handler = Callable[..., Answer]
NOT_ALLOWED = "The requested method is not allowed for this path."
_ROUTES: list[tuple[str, re.Pattern[str], Handler]] = []


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    """Of `/pods/{id}` the handler gets `id` after the service, the caller and the request."""

    def add(handler: Handler) -> Handler:
        _ROUTES.append((method, re.compile(re.sub(r"{\w+}", "([^/]+)", path)), handler))
        return handler

    return add


def answer(service: Service, caller: Caller, request: Request) -> Answer:
    """What is right, whatever fault the request met but those of what it makes."""
    fitting = [(method, found, handler) for method, path, handler in _ROUTES if (found := path.fullmatch(request.path))]
    if not fitting:
        raise not_found()
    for method, found, handler in fitting:
        if method == request.method:
            caller.check(method, request.path)
            if request.raw and request.body is None:
                raise Refusal(400, "request body is not valid JSON")
            return handler(service, caller, request, *found.groups())
    allowed = ", ".join(sorted(method for method, _, _ in fitting))
    raise Refusal(405, NOT_ALLOWED, headers={"Allow": allowed})
