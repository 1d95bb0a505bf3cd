"""What RunPod's answers mean, in our errors. Pure.

A 400 has no code of its own for `nothing free`: the words alone tell it from a rule that was broken. RunPod's
description says of any 400 to a create `try your next candidate`: it is a rule only where it names what is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpuops.core.errors import AuthFailed, NoCapacity, ProviderError, QuotaExceeded, RateLimited, Rejected, Unknown
from provisioners.runpod.credentials import API, BILLING, CONSOLE

LATER = "try again later, let it be tried for you (--wait 2h), or allow more kinds of machine"
NONE_FREE = re.compile(
    r"no (?:longer any )?instances|instances available|does not have the resources|not enough (?:free )?gpus|"
    r"enough disk space|insufficient (?:capacity|resources)|no capacity|out of (?:stock|capacity)|"
    r"(?:no|not) (?:gpus?|machines?|stock)? ?(?:\w+ ){0,2}available|currently unavailable|supply.constraint",
    re.IGNORECASE,
)
"""How `none to be had now` was worded over the years."""
OURS = re.compile(
    r"mutually exclusive|exactly one|must be|at most|at least|\binvalid\b|not (?:valid|allowed|supported|found)|"
    r"does not (?:support|exist)|only (?:available|supported)|network volume|\bimage\b|properties|"
    r"environment variables?|bad request|malformed",
    re.IGNORECASE,
)
"""How a rule is worded that the request broke: no other offer helps."""
NO_MONEY = re.compile(r"balance|(?:insufficient|not enough|add|out of) (?:funds|credits?)|spend(?:ing)? limit", re.I)
MISSING = re.compile(r"missing propert", re.IGNORECASE)
LONGEST = 300


def failure(
    status: int, headers: Mapping[str, str], body: bytes, doing: str, *, creating: bool = False
) -> ProviderError:
    """The error of an answer that is none of success. `doing`: `create a pod`; `creating`: it costs money once done."""
    text = body.decode(errors="replace")
    document = _document(text)
    detail = _detail(document, text)
    if 300 <= status < 400:
        return Rejected(f"RunPod's address answers with a redirect, to {doing}", f"set RUNPOD_API_URL to {API}")
    if status == 429:
        said = f"RunPod wants fewer requests{_because(detail)}"
        return RateLimited(said, "wait, or run fewer commands at a time", seconds(headers))
    if status >= 500:
        return _of_server(status, document, detail, doing)
    if wrong := _other_api(document):
        return Rejected(wrong, f"unset RUNPOD_API_URL, or set it to {API}")
    if status == 401:
        return AuthFailed(f"RunPod does not accept the API key{_because(detail)}", f"look at your keys: {CONSOLE}")
    if status == 402 or (status == 400 and NO_MONEY.search(detail)):
        return QuotaExceeded(
            f"the balance or spend limit of the RunPod account does not let it {doing}{_because(detail)}",
            f"a pod needs credit for an hour, within the spend limit: {BILLING}",
        )
    if status == 403:
        return _forbidden(document, text, detail, doing, creating=creating)
    if status == 400 and creating and NONE_FREE.search(detail):
        first = detail.partition(". ")[0]  # the next one says to refresh a page
        return NoCapacity(f"RunPod has none free: {first}", LATER)
    if status == 400 and creating and not (OURS.search(detail) or MISSING.search(detail)):
        return NoCapacity(f"RunPod makes none now, and does not say why: {detail or 'HTTP 400'}", LATER)
    if status == 410:
        return Rejected("RunPod has switched off the API that this gpuops speaks", "upgrade gpuops")
    return Rejected(f"RunPod refuses to {doing}: {detail or f'HTTP {status}'}", _remedy(status, detail))


def _of_server(status: int, document: Any, detail: str, doing: str) -> Unknown:
    if wrong := _other_api(document):
        return Unknown(wrong, f"unset RUNPOD_API_URL, or set it to {API}")
    return Unknown(f"RunPod failed to {doing} (HTTP {status}){_because(detail)}", "try again in a minute")


def _forbidden(document: Any, text: str, detail: str, doing: str, *, creating: bool) -> ProviderError:
    """Access that the account or its key has not; or somebody before RunPod who lets nobody through."""
    if "1010" in text and "error code" in text.lower():
        return Rejected(
            f"Cloudflare, which stands before RunPod, does not let this program {doing} (error code 1010: its "
            "User-Agent)",
            "try another network, and tell the makers of gpuops",
        )
    if not isinstance(document, dict):
        return Rejected(
            f"something between here and RunPod forbids to {doing} (HTTP 403, and not in RunPod's words)",
            "look at your proxy, or try another network",
        )
    hint = f"see what this key may do: {CONSOLE}"
    if creating:
        said = f"this account or its key may not {doing}: {detail or 'access denied'}"
        return NoCapacity(f"{said} (a key that is Read Only looks, and rents nothing)", hint)
    return AuthFailed(f"the RunPod API key may not {doing}: {detail or 'access denied'}", hint)


def other_shape(document: Any) -> str:
    """The sentence for an answer of success that is not of REST v2; empty where nothing is known of it."""
    if isinstance(document, list):
        return "what answers is RunPod's older REST API v1, not v2"
    if isinstance(document, dict) and ("data" in document or "errors" in document):
        return "what answers is RunPod's GraphQL API, not its REST API v2"
    return ""


def _other_api(document: Any) -> str:
    if isinstance(document, dict) and "detail" not in document and "title" not in document:
        if "error" in document:
            return f"what answers is RunPod's older REST API v1, not v2{_because(_line(document['error']))}"
        if isinstance(document.get("errors"), list):
            return "what answers is RunPod's GraphQL API, not its REST API v2"
    return ""


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _detail(document: Any, text: str) -> str:
    """Why, in RunPod's words: of a missing property that alone, since then valid ones are called wrong as well."""
    if not isinstance(document, dict):
        return "" if "<" in text else _line(text)
    detail = _line(document.get("detail") or document.get("title") or document.get("error") or "").rstrip(".")
    listed = document.get("errors")
    told = [_line(one) for one in listed] if isinstance(listed, list) else []
    told = [one for one in told if MISSING.search(one)] or told
    return _line("; ".join(dict.fromkeys([detail, *told]))) if told else detail


def _line(said: Any) -> str:
    text = said if isinstance(said, str) else json.dumps(said) if said else ""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""


def _remedy(status: int, detail: str) -> str:
    if "image" in detail.lower():
        return "check --image: RunPod must be able to pull it without a login"
    if status in (404, 405) or MISSING.search(detail) or "additional propert" in detail.lower():
        return "upgrade gpuops: RunPod's API has changed"
    return "change what is asked for: RunPod would say no again"


def seconds(headers: Mapping[str, str]) -> float | None:
    """`Retry-After`, which RunPod's description gives in seconds; None where it is not said, or no such number."""
    said = headers.get("Retry-After") or ""
    return float(said) if said.isascii() and said.isdigit() else None
