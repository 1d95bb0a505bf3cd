"""What RunPod's answers mean."""

from __future__ import annotations

import json

import pytest

from gpuops.core.errors import AuthFailed, NoCapacity, ProviderError, QuotaExceeded, RateLimited, Rejected, Unknown
from provisioners.runpod.service import SERVICE

GONE = "There are no longer any instances available with the requested specifications. Please refresh and try again."


def of(status: int, detail: object = "", *, creating: bool = True, **more: object) -> ProviderError:
    body = (
        detail
        if isinstance(detail, bytes)
        else json.dumps({"title": "T", "status": status, "detail": detail, **more}).encode()
    )
    return SERVICE.failure(status, {}, body, "create a pod", creating=creating)


@pytest.mark.parametrize("detail", [
    GONE, GONE.upper(),
    "There are no instances available with the request specifications. Please try again later.",
    "There are no longer any instances available with enough disk space.",
    "This machine does not have the resources to deploy your pod. Please try a different machine",
    "create pod: This machine does not have the resources to deploy your pod",
    "There are not enough free GPUs on the host machine to start this pod.",
])  # fmt: skip
def test_none_free_in_all_its_wordings(detail: str) -> None:
    error = of(400, detail)
    assert type(error) is NoCapacity
    assert error.message.endswith(detail.partition(". ")[0].rstrip("."))  # one sentence


@pytest.mark.parametrize(("status", "detail", "kind", "say"), [
    (400, "gpu.minCudaVersion and gpu.allowedCudaVersions are mutually exclusive", Rejected, "mutually exclusive"),
    (400, "data center EU-X-1 has no network volumes; use one of US-KS-2", Rejected, "use one of US-KS-2"),
    (400, "a pod can have at most 50 environment variables", Rejected, "at most 50"),
    (400, "mounts.persistent and mounts.network are mutually exclusive", Rejected, "mutually exclusive"),
    (400, "network volume is in use by a pod", Rejected, "in use"),
    (400, "Something went wrong. Please try again later or contact support", NoCapacity, "Something went wrong"),
    (400, "Error creating cluster - cluster creation failed", NoCapacity, "cluster creation failed"),
    (400, "", NoCapacity, "does not say why: T"),
    (400, "insufficient balance", QuotaExceeded, "insufficient balance"),
    (401, "missing bearer token", AuthFailed, "does not accept the API key"),
    (402, "", QuotaExceeded, "the balance or spend limit"),
    (402, "Your balance is too low", QuotaExceeded, "Your balance is too low"),
    (403, "access denied", NoCapacity, "may not create a pod: access denied"),
    (404, "resource not found", Rejected, "resource not found"),
    (405, "The requested method is not allowed", Rejected, "not allowed"),
    (409, "locked", Rejected, "locked"),
    (410, "gone", Rejected, "switched off"),
    (422, "image runpod/no:such was not found on its registry", Rejected, "not found on its registry"),
    (500, "oops", Unknown, "HTTP 500"),
    (504, "timeout", Unknown, "HTTP 504"),
    (429, "rate limit exceeded for the minute window", RateLimited, "fewer requests"),
    (302, "", Rejected, "redirect"),
])  # fmt: skip
def test_every_status_is_one_of_our_errors(status: int, detail: str, kind: type, say: str) -> None:
    error = of(status, detail)
    assert type(error) is kind
    assert say in error.message
    assert error.hint


def test_what_may_not_be_read_is_the_keys_fault_not_the_stocks() -> None:
    assert type(of(403, "access denied", creating=False)) is AuthFailed
    assert type(of(400, GONE, creating=False)) is Rejected
    assert type(of(400, "Something went wrong", creating=False)) is Rejected


def test_a_gateway_that_dislikes_the_program() -> None:
    error = of(403, b"<html>Access denied | error code: 1010</html>")
    assert type(error) is Rejected
    assert "Cloudflare" in error.message
    assert "User-Agent" in error.message
    assert type(of(403, b"<html>blocked by the company</html>")) is Rejected


def test_of_what_a_validator_says_the_missing_property_counts() -> None:
    both = ["$: missing property 'dataCenter'", "$: additional properties 'dataCenterId' not allowed"]
    error = of(422, "Request validation failed.", errors=both)
    assert error.message.endswith("Request validation failed; $: missing property 'dataCenter'")
    alone = of(422, "Request validation failed.", errors=["$: additional properties 'x' not allowed"])
    assert "'x' not allowed" in alone.message


@pytest.mark.parametrize(("header", "seconds"), [("12", 12.0), ("soon", None), ("-3", None), (None, None)])
def test_how_long_to_wait(header: str | None, seconds: float | None) -> None:
    error = SERVICE.failure(429, {"Retry-After": header} if header else {}, b"", "list pods")
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds


def test_an_older_api_is_recognised() -> None:
    old = SERVICE.failure(
        500, {}, b'{"error": "create pod: no longer any instances", "status": 500}', "create a pod", creating=True
    )
    assert type(old) is Unknown, "it may have been made"
    assert "REST API v1" in old.message
    assert "v1" in SERVICE.failure(400, {}, b'{"error": "x"}', "list pods").message
    assert "GraphQL" in SERVICE.failure(400, {}, b'{"errors": [{"message": "x"}]}', "list pods").message


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"3", b"\xff\xfe", b'{"detail": {"a": 1}}', b'{"errors": "x"}',
                                  b"[" * 100_000, b"x" * 10_000])  # fmt: skip
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 422, 429, 500])
def test_nonsense_is_one_sentence_all_the_same(status: int, body: bytes) -> None:
    error = SERVICE.failure(status, {}, body, "create a pod", creating=True)
    assert 0 < len(error.message) < 500
    assert "\n" not in error.message
