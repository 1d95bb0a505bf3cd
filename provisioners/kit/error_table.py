"""A provider's failed answers turned into our errors, in one form: a table whose first fitting row counts.

A provider's `errors.py` holds its table, and one function `failure` that names an answer and looks it up.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpuops.core.errors import ProviderError

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
    """In `say` and `hint`, `{name}` stands for one of the values that `find` is given: `{why}`, `{doing}`."""
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
