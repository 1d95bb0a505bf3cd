"""How often one account may be asked, by every process on this computer together."""

from __future__ import annotations

import fcntl
from pathlib import Path

from gpuops.core.polling import Clock

MAX_TURNS_AHEAD = 60
"""More of them than anybody has taken: the clock was set back."""


class Pace:
    """Turns that are `apart_s` from one another. May be used from any thread.

    path   a file of the account, in gpuops' own folder: it holds the time of the last turn (UTC seconds), which may be
           to come. Where it cannot be written, each process counts as the only one.
    """

    def __init__(self, path: Path, apart_s: float, clock: Clock) -> None:
        self._path = path
        self._apart_s = apart_s
        self._clock = clock

    def wait(self) -> None:
        """Take the next turn, and return once it has come."""
        self._clock.sleep(self._take(can_wait=True))

    def try_now(self) -> float:
        """Take the turn where it is now: 0. Else nothing is taken, and this is in how many seconds it will be."""
        return self._take(can_wait=False)

    def _take(self, *, can_wait: bool) -> float:
        """The seconds until the turn; it is taken where they are 0, or one `can_wait`."""
        if self._apart_s <= 0:
            return 0.0
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._path, "a+", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                now = self._clock.now()
                wait_s = self._until_next(file.read(), now)
                if can_wait or wait_s <= 0:
                    file.truncate(0)
                    file.write(f"{now + wait_s:.3f}")
                    file.flush()
                return wait_s
        except OSError:
            return self._apart_s if can_wait else 0.0

    def _until_next(self, last: str, now: float) -> float:
        """A clock that was set back makes nobody wait long: that turn is as good as now."""
        try:
            wait_s = float(last) + self._apart_s - now
        except ValueError:
            return 0.0
        return wait_s if 0 < wait_s <= MAX_TURNS_AHEAD * self._apart_s else 0.0


def pace_file(home: Path, provider: str, account: str, what: str) -> Path:
    """Where `Pace` counts. `account`: no secret (`api_key.fingerprint`); `what`: `requests`, `launches`."""
    return home / "pace" / f"{provider}-{account}-{what}"
