"""What RunPod's answers mean, in our errors. Pure.

A 400 has no code of its own for `nothing free`: the words alone tell it from a rule that was broken. RunPod's
description says of any 400 to a create `try your next candidate`: it is a rule only where it names what is asked for.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gpuops.core.errors import AuthFailed, NoCapacity, QuotaExceeded, Rejected, Unknown
from gpuops.core.format import one_line
from provisioners.kit.error_table import (
    ANY,
    BAD_KEY,
    FAILED,
    MAX_WORDS_CHARS,
    REDIRECT,
    REFUSED,
    TOO_MANY,
    Row,
    Words,
    because,
)

API = "https://api.runpod.io/v2"
CONSOLE = "https://console.runpod.io/user/settings"
BILLING = "https://console.runpod.io/user/billing"
LATER = "try again later, let it be tried for you (--wait 2h), or allow more kinds of machine"
NONE_FREE = re.compile(
    r"no (?:longer any )?instances|instances available|does not have the resources|not enough (?:free )?gpus|"
    r"enough disk space|insufficient (?:capacity|resources)|no capacity|out of (?:stock|capacity)|"
    r"(?:no|not) (?:gpus?|machines?|stock)? ?(?:\w+ ){0,2}available|currently unavailable|supply.constraint",
    re.IGNORECASE,
)
"""How `none to be had now` was worded over the years."""
RULE = re.compile(
    r"mutually exclusive|exactly one|must be|at most|at least|\binvalid\b|not (?:valid|allowed|supported|found)|"
    r"does not (?:support|exist)|only (?:available|supported)|network volume|\bimage\b|properties|"
    r"environment variables?|bad request|malformed|missing propert",
    re.IGNORECASE,
)
"""How a rule is worded that the request broke: no other offer helps."""
NO_MONEY = re.compile(r"balance|(?:insufficient|not enough|add|out of) (?:funds|credits?)|spend(?:ing)? limit", re.I)
MISSING = re.compile(r"missing propert", re.IGNORECASE)
PROPERTY = re.compile(r"missing propert|additional propert", re.IGNORECASE)
IMAGE = re.compile("image", re.IGNORECASE)
CLOUDFLARE = "403 of Cloudflare"
FOREIGN = "403 not in JSON"
NO_MONEY_SAY = "the balance or spend limit of the RunPod account does not let it {doing}{why}"
NO_MONEY_HINT = f"a pod needs credit for an hour, within the spend limit: {BILLING}"
CHANGED = "upgrade gpuops: RunPod's API has changed"
KEY = f"see what this key may do: {CONSOLE}"
ERRORS = (
    REDIRECT,
    TOO_MANY,
    Row(("5xx other API",), Unknown, "{other_api}", "{unset}"),
    FAILED,
    Row(("4xx other API",), Rejected, "{other_api}", "{unset}"),
    BAD_KEY,
    Row(("402",), QuotaExceeded, NO_MONEY_SAY, NO_MONEY_HINT),
    Row(("400",), QuotaExceeded, NO_MONEY_SAY, NO_MONEY_HINT, NO_MONEY),
    # Access that the account or its key has not; or a proxy before RunPod that lets nothing through.
    Row((CLOUDFLARE,), Rejected,
        "Cloudflare, which stands before RunPod, does not let this program {doing} (error code 1010: its User-Agent)",
        "try another network, and tell the makers of gpuops"),
    Row((FOREIGN,), Rejected,
        "something between here and RunPod forbids to {doing} (HTTP 403, and not in RunPod's words)",
        "look at your proxy, or try another network"),
    Row(("403",), NoCapacity, "this account or its key may not {doing}: {detail} (a key that is Read Only looks, and "
        "rents nothing)", KEY, creating=True),
    Row(("403",), AuthFailed, "the RunPod API key may not {doing}: {detail}", KEY),
    # None to be had now, in words alone.
    Row(("400",), NoCapacity, "RunPod has none free: {first}", LATER, NONE_FREE, creating=True),
    Row(("400",), NoCapacity, "RunPod makes none now, and does not say why: {detail}", LATER, without=RULE,
        creating=True),
    # What would be refused again.
    Row(("410",), Rejected, "RunPod has switched off the API that this gpuops speaks", "upgrade gpuops"),
    Row((ANY,), Rejected, REFUSED.say, "check --image: RunPod must be able to pull it without a login", IMAGE),
    Row(("404", "405"), Rejected, REFUSED.say, CHANGED),
    Row((ANY,), Rejected, REFUSED.say, CHANGED, PROPERTY),
    Row((ANY,), Rejected, REFUSED.say, "change what is asked for: RunPod would say no again"),
)  # fmt: skip
"""`{first}`: the first sentence of RunPod's words."""


def read_words(status: int, document: Any, text: str) -> Words:
    other_api, detail = _other_api(document), _detail(document, text)
    names = [f"{status // 100}xx other API"] if other_api else []
    if status == 403 and "1010" in text and "error code" in text.lower():
        names.append(CLOUDFLARE)
    if status == 403 and not isinstance(document, dict):
        names.append(FOREIGN)
    told = detail or ("access denied" if status == 403 else f"HTTP {status}")
    first = detail.partition(". ")[0]  # the sentence after it says to refresh a page
    return Words(message=detail, names=names, values={"detail": told, "first": first, "other_api": other_api})


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
            return f"what answers is RunPod's older REST API v1, not v2{because(_line(document['error']))}"
        if isinstance(document.get("errors"), list):
            return "what answers is RunPod's GraphQL API, not its REST API v2"
    return ""


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
    return one_line(said if isinstance(said, str) else json.dumps(said) if said else "", MAX_WORDS_CHARS)
