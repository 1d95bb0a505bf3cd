"""A provider's clock, as its answers tell it: HTTP's `Date`, and the seconds that have passed since."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from gpuops.core.polling import Clock


class ServerClock:
    """The latest answer counts. May be used from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: tuple[float, float] | None = None
        """What the last answer said (UTC seconds), and when it came (seconds since the boot)."""

    def note(self, date: str | None) -> None:
        """Take the `Date` of an answer that has just come; what is none changes nothing."""
        try:
            said = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, TypeError, OverflowError, OSError):
            return
        self._last = said, self._clock.since_boot()

    def now(self) -> float | None:
        """The provider's time now in UTC seconds; None before an answer has told it."""
        if self._last is None:
            return None
        said, came = self._last
        return said + self._clock.since_boot() - came
