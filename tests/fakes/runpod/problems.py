"""What the service refuses, and in which words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
NO_CAPACITY = (
    "There are no longer any instances available with the requested specifications. Please refresh and try again."
)
NOT_VALID = "Request validation failed."
NO_MONEY = "insufficient balance"
TOO_MANY = "rate limit exceeded for the minute window"
IN_CLUSTER = "Pod belongs to a cluster and cannot be terminated via the pod endpoints."


class Refusal(Exception):
    """An answer in application/problem+json."""

    def __init__(
        self, status: int, detail: str, errors: Sequence[str] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {"title": TITLES.get(status, "Error"), "status": status, "detail": detail}
        if errors:
            self.body["errors"] = list(errors)


def not_found() -> Refusal:
    return Refusal(404, "resource not found")


def denied() -> Refusal:
    return Refusal(403, "access denied")


def no_capacity() -> Refusal:
    """One status and one sentence for "all taken" and for much that could never be."""
    return Refusal(400, NO_CAPACITY)
