"""What Lambda's failed answers mean, in our errors: its codes count, since it may change its messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpuops.core.errors import AuthFailed, NoCapacity, ProviderError, QuotaExceeded, RateLimited, Rejected, Unknown
from gpuops.core.format import one_line
from provisioners.kit import error_table
from provisioners.kit.documents import inner, parse_document
from provisioners.kit.error_table import ANY, MAX_WORDS_CHARS, Row, because
from provisioners.kit.http_api import retry_after_s

CONSOLE = "https://cloud.lambda.ai"
NONE_FREE = "instance-operations/launch/insufficient-capacity"
UPSTREAM = "provider/"
"""How the codes begin of what failed behind Lambda: whether it was done is not known."""
TABLE: tuple[Row, ...] = (
    Row(("3xx",), Rejected, "Lambda's address answers with a redirect, to {doing}", "unset LAMBDA_API_URL"),
    Row(("429",), RateLimited, "Lambda wants fewer requests", "wait, or run fewer commands at a time"),
    Row(("5xx", UPSTREAM), Unknown, "Lambda failed to {doing} (HTTP {status}){why}", "try again in a minute"),
    Row(("401", "global/invalid-api-key"), AuthFailed, "Lambda does not accept the API key{why}",
        f"look at your keys: {CONSOLE}/api-keys"),
    Row(("global/account-inactive",), AuthFailed, "the Lambda account is inactive{why}",
        f"activate it: {CONSOLE}"),
    Row(("global/invalid-address",), AuthFailed, "Lambda does not accept the account's billing address{why}",
        f"put it right: {CONSOLE}/settings/billing"),
    Row(("403",), AuthFailed, "the Lambda API key may not {doing}{why}", f"look at your keys: {CONSOLE}/api-keys"),
    Row((NONE_FREE,), NoCapacity, "Lambda has none free: it cannot {doing} now, though it may have listed it",
        "try again later, let it be tried for you (--wait 2h), or allow more kinds of machine"),
    Row(("global/quota-exceeded",), QuotaExceeded, "the Lambda account may not have more machines{why}",
        "end one, or ask Lambda's support for a higher quota"),
    Row((ANY,), Rejected, "Lambda refuses to {doing}: {detail}", "{suggestion}"),
)  # fmt: skip


def failure(
    status: int, headers: Mapping[str, str], body: bytes, doing: str, *, creating: bool = False
) -> ProviderError:
    """The error of an answer that is none of success. `doing`: `start a gpu_1x_a10 in us-west-1`."""
    document = parse_document(body.decode(errors="replace"))
    said = inner(document, "error") if isinstance(document, dict) else {}
    code, message = str(said.get("code") or ""), one_line(str(said.get("message") or ""), MAX_WORDS_CHARS)
    names = {str(status), f"{status // 100}xx", code, *([UPSTREAM] if code.startswith(UPSTREAM) else [])}
    values = {
        "doing": doing,
        "status": str(status),
        "why": because(message.rstrip(".")),
        "detail": message or f"HTTP {status}, and not in Lambda's words",
        "suggestion": one_line(str(said.get("suggestion") or "change what is asked for"), MAX_WORDS_CHARS),
    }
    error = error_table.find(TABLE, names, message, values, creating=creating)
    if isinstance(error, RateLimited):
        error.retry_after = retry_after_s(headers)
    return error
