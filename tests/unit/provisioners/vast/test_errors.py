"""What Vast.ai's answers mean, in its own words as its description and its client give them."""

from __future__ import annotations

import json

import pytest

from gpuops.core.errors import (
    AuthFailed,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Rejected,
    Unknown,
)
from provisioners.vast.service import SERVICE


def answered(status: int, body: object, *, creating: bool = False) -> ProviderError:
    text = body if isinstance(body, str) else json.dumps(body)
    return SERVICE.failure(status, {}, text.encode(), "rent a machine", creating=creating)


GONE_404 = {
    "success": False,
    "error": "invalid_args",
    "msg": "error 404/3603: no_such_ask Instance type by id 7 is not available.",
}
GONE_410 = {
    "success": False,
    "error": "no_such_ask",
    "msg": "error 410/3907: no_such_ask Instance type 7 is no longer available.",
}
ROWS: list[tuple[int, object, bool, type[ProviderError]]] = [
    (404, GONE_404, True, NoCapacity),
    (410, GONE_410, True, NoCapacity),
    (404, {"error": "x", "msg": "Invalid user key"}, False, AuthFailed),
    (401, {"success": False, "error": "auth_error", "msg": "Invalid user key"}, True, AuthFailed),
    (400, {"success": False, "error": "no_such_ask", "msg": "Instance type 7 is gone."}, True, NoCapacity),
    (401, "", True, AuthFailed),
    (403, {"error": "invalid_args", "msg": "error 403/3586: Offer 7 is not your own."}, True, AuthFailed),
    (400, {"error": "invalid_price", "msg": "bid too low"}, True, NoCapacity),
    (400, {"error": "insufficient_credit", "msg": "Insufficient credits"}, True, QuotaExceeded),
    (400, {"error": "invalid_args", "msg": "error 400/3467: Invalid args"}, True, Rejected),
    (404, {"success": False, "error": "not_found", "msg": "Instance not found"}, False, Rejected),
    (502, "<html>Bad Gateway</html>", True, Unknown),
]


@pytest.mark.parametrize(("status", "body", "creating", "kind"), ROWS)
def test_an_answer_is_one_of_our_errors(status: int, body: object, creating: bool, kind: type[ProviderError]) -> None:
    error = answered(status, body, creating=creating)
    assert type(error) is kind
    assert error.hint
    assert "<" not in error.message


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({"detail": "API requests too frequent endpoint threshold=4.5"}, 4.5),
        ({"error": "rate_limit_exceeded", "msg": "API requests too frequent endpoint threshold=3.0"}, 3.0),
        ("Too many requests: threshold=4.5.", 4.5),
        ("Too many requests", 5.0),
    ],
)
def test_how_long_to_wait_stands_in_the_words(body: object, seconds: float) -> None:
    error = answered(429, body)
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds
