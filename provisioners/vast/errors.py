"""What Vast.ai's answers mean, in our errors. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuops.core.errors import AuthFailed, NoCapacity, ProviderError, QuotaExceeded, RateLimited, Rejected, Unknown
from gpuops.core.format import one_line
from provisioners.kit import error_table
from provisioners.kit.documents import parse_document
from provisioners.kit.error_table import ANY, MAX_WORDS_CHARS, Row, because

KEYS = "https://cloud.vast.ai/manage-keys/"
NO_KEY = f"make one at {KEYS}, and export VAST_API_KEY=… or put it into .env"
BILLING = "https://cloud.vast.ai/billing/"
LATER = "try again later, or let it be tried for you (--wait 2h)"
TAKEN = "it was rented by somebody else meanwhile"
GONE = re.compile(r"no_such_ask|no longer available|is not available", re.IGNORECASE)
NO_MONEY = re.compile(r"credit|balance|funds|billing", re.IGNORECASE)
BAD_KEY = re.compile(r"invalid user key|auth_error", re.IGNORECASE)
THRESHOLD = re.compile(r"threshold=(\d+(?:\.\d+)?)")
"""Least seconds from one request of a kind to the next: said in the words of a 429, without `Retry-After`."""
THRESHOLD_S = 5.0
TABLE: tuple[Row, ...] = (
    Row(("429",), RateLimited, "Vast.ai wants fewer requests{why}", "wait, or run fewer commands at a time"),
    Row(("401", "404"), AuthFailed, "Vast.ai does not accept the API key{why}", f"look at your keys: {KEYS}", BAD_KEY),
    Row(("401",), AuthFailed, "Vast.ai does not accept the API key{why}", f"look at your keys: {KEYS}"),
    Row(("404", "410"), NoCapacity, TAKEN, LATER, GONE, creating=True),
    Row(("no_such_ask",), NoCapacity, TAKEN, LATER, creating=True),
    Row(("invalid_price",), NoCapacity, "the bid is too low by now{why}", "bid more: --bid", creating=True),
    Row(("402", "400", "403"), QuotaExceeded, "the credit at Vast.ai does not let it {doing}{why}",
        f"add credit: {BILLING}", NO_MONEY),
    Row(("403",), AuthFailed, "the Vast.ai API key may not {doing}{why}", f"see what this key may do: {KEYS}"),
    Row(("5xx",), Unknown, "Vast.ai failed to {doing} (HTTP {status}){why}", "try again in a minute"),
    Row((ANY,), Rejected, "Vast.ai refuses to {doing} (HTTP {status}){why}", "change what is asked for"),
)  # fmt: skip


def failure(
    status: int,
    headers: Mapping[str, str],  # noqa: ARG001  (none of Vast.ai's says anything)
    body: bytes,
    doing: str,
    *,
    creating: bool = False,
) -> ProviderError:
    """The error of an answer that is none of success: Vast.ai has `error` and `msg` there, or `detail`, or text."""
    text = body.decode(errors="replace")
    document = parse_document(text)
    told = document if isinstance(document, dict) else {}
    code = str(told.get("error") or "")
    said = told.get("msg") or told.get("detail") or code or ("" if "<" in text else text)
    words = one_line(str(said), MAX_WORDS_CHARS)
    values = {"doing": doing, "status": str(status), "why": because(words)}
    names = {str(status), f"{status // 100}xx", code}
    error = error_table.find(TABLE, names, f"{code} {words}", values, creating=creating)
    if isinstance(error, RateLimited):
        found = THRESHOLD.search(words)
        error.retry_after = float(found[1]) if found else THRESHOLD_S
    return error
