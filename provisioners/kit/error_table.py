"""A provider's failed answers turned into our errors, in one form: a table whose first fitting row counts. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuops.core.errors import AuthFailed, ProviderError, QuotaExceeded, RateLimited, Rejected, Unknown
from gpuops.core.format import one_line
from provisioners.kit.documents import Document, inner

ANY = "any answer"
MAX_WORDS_CHARS = 300
"""A provider's words are cut to this many characters in an error."""


@dataclass(frozen=True)
class Row:
    """One kind of failure."""

    names: Collection[str]
    """Of which one must be the answer's: a code, a status, an exception's class."""
    error: type[ProviderError]
    say: str
    hint: str
    """In `say` and `hint`, `{name}` stands for one of the values that `find` is given: `{who}`, the provider;
    `{doing}`, what was tried; `{status}`; `{why}`, the answer's words after a colon; `{detail}`, they or the status;
    `{hint}`, what the answer says to do; `{keys}`, where keys are made; `{billing}`, how credit is added; `{unset}`,
    what to do about the address."""
    words: re.Pattern[str] | None = None
    """Must be found in the answer's words."""
    without: re.Pattern[str] | None = None
    """Must not be found in them."""
    creating: bool = False
    """Only for a request that costs money once it is done."""

    def fits(self, names: Collection[str], words: str, *, creating: bool) -> bool:
        return (
            (ANY in self.names or any(name in self.names for name in names))
            and (creating or not self.creating)
            and (self.words is None or self.words.search(words) is not None)
            and (self.without is None or self.without.search(words) is None)
        )


def find(
    table: Iterable[Row], names: Collection[str], words: str, values: Mapping[str, str], *, creating: bool = False
) -> ProviderError:
    """The error of the first row that fits. The last row of a table must be for ANY."""
    row = next(row for row in table if row.fits(names, words, creating=creating))
    return row.error(row.say.format(**values), row.hint.format(**values))


def because(words: str) -> str:
    """What is appended to a sentence: `: no balance`; empty where no words are known."""
    return f": {words}" if words else ""


@dataclass(frozen=True)
class Words:
    """What a failed answer says."""

    code: str = ""
    """The provider's own name of the failure: a row may be for it."""
    message: str = ""
    hint: str = ""
    """What to do, in the provider's words."""
    names: Collection[str] = ()
    """Further ones by which rows know it."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Further ones for what rows say."""


def read_words(status: int, document: Any, text: str) -> Words:  # noqa: ARG001  (a provider's own may want it)
    """The words where APIs mostly have them: `{"error": {"code", "message"}}`, `{"error": CODE, "msg"}`, `{"detail"}`,
    or a text that is no page of HTML."""
    told: Document = document if isinstance(document, dict) else {}
    told = inner(told, "error") or told
    code = _first_text(told, "code", "error")
    plain = "" if "<" in text or isinstance(document, dict) else text
    message = _first_text(told, "message", "msg", "detail", "title") or code or plain
    hint = one_line(_first_text(told, "suggestion"), MAX_WORDS_CHARS)
    return Words(code, one_line(message, MAX_WORDS_CHARS).rstrip("."), hint)


def _first_text(document: Document, *names: str) -> str:
    return next((document[name] for name in names if isinstance(document.get(name), str)), "")


# What a status means wherever the provider says nothing else.
REDIRECT = Row(("3xx",), Rejected, "{who}'s address answers with a redirect, to {doing}", "{unset}")
TOO_MANY = Row(("429",), RateLimited, "{who} wants fewer requests{why}", "wait, or run fewer commands at a time")
FAILED = Row(("5xx",), Unknown, "{who} failed to {doing} (HTTP {status}){why}", "try again in a minute")
BAD_KEY = Row(("401",), AuthFailed, "{who} does not accept the API key{why}", "look at your keys: {keys}")
NO_MONEY = Row(("402",), QuotaExceeded, "the credit at {who} does not let it {doing}{why}", "{billing}")
FORBIDDEN = Row(("403",), AuthFailed, "the {who} API key may not {doing}{why}", "see what this key may do: {keys}")
REFUSED = Row((ANY,), Rejected, "{who} refuses to {doing}: {detail}", "{hint}")
STANDARD = (REDIRECT, TOO_MANY, FAILED, BAD_KEY, NO_MONEY, FORBIDDEN, REFUSED)
"""What a table ends with."""
