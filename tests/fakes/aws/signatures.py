"""Whether a request is signed as AWS wants it (Signature Version 4), in its header or in its address."""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote, urlsplit

from tests.fakes.aws.requests import Refusal, Request

_PLAIN = re.compile(r"[0-9a-f]{64}")


def check(request: Request, secret: str, now: float) -> bool:
    """False where the signature is another one; refused where it came too late, or is of an older kind."""
    query = parse_qsl(urlsplit(request.path).query, keep_blank_values=True)
    asked = dict(query)
    if "X-Amz-Signature" in asked:
        _check_time(asked, now)
        return hmac.compare_digest(
            asked["X-Amz-Signature"],
            _signature(
                request, secret, asked["X-Amz-Credential"], asked["X-Amz-Date"], asked["X-Amz-SignedHeaders"],
                [one for one in query if one[0] != "X-Amz-Signature"], "UNSIGNED-PAYLOAD",
            ),
        )  # fmt: skip
    words = dict(re.findall(r"(\w+)=([^,\s]+)", request.headers.get("authorization", "")))
    if not {"Credential", "SignedHeaders", "Signature"} <= set(words):
        raise Refusal("InvalidRequest", "The authorization mechanism is not supported. Use AWS4-HMAC-SHA256.", 400)
    content = request.headers.get("x-amz-content-sha256") or hashlib.sha256(request.raw).hexdigest()
    if _PLAIN.fullmatch(content) and content != hashlib.sha256(request.raw).hexdigest():
        return False
    right = _signature(
        request,
        secret,
        words["Credential"],
        request.headers.get("x-amz-date", ""),
        words["SignedHeaders"],
        query,
        content,
    )
    return hmac.compare_digest(words["Signature"], right)


def _check_time(asked: dict[str, str], now: float) -> None:
    made = datetime.strptime(asked["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if made + timedelta(seconds=int(asked["X-Amz-Expires"])) < datetime.fromtimestamp(now, UTC):
        raise Refusal("AccessDenied", "Request has expired", 403)


def _signature(
    request: Request,
    secret: str,
    credential: str,
    moment: str,
    signed: str,
    query: list[tuple[str, str]],
    content: str,
) -> str:
    _, day, region, service, end = credential.split("/")
    names = signed.split(";")
    ordered = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query)
    canonical = "\n".join(
        [
            request.method,
            urlsplit(request.path).path or "/",
            "&".join(f"{name}={value}" for name, value in ordered),
            *(f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in names),
            "",
            signed,
            content,
        ]
    )
    scope = "/".join((day, region, service, end))
    told = "\n".join(("AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, end):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, told.encode(), hashlib.sha256).hexdigest()
