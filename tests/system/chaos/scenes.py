"""A crash as a case, and the scenes that are the same at every provider: who is hit, and who sees to the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.conftest import held_guard_locks, until
from tests.system.chaos.hits import KILLS, Hit, Point, guards, kill
from tests.system.chaos.tenant import Tenant

THEN = ("guard", "status", "reap")
HANG_S = 800.0
"""What may have been made is believed not to be only after `settle_s`; and many of these run at once."""
KILLED = -9


@dataclass(frozen=True)
class Case:
    story: str
    """Who is hit: a command that rents; or after one was killed the guard, a `down`, or a `reap`."""
    hit: Hit
    then: str = "guard"
    """Who sees to the end: the guard alone, or it is killed, too, and this is typed."""

    def __str__(self) -> str:
        return f"{self.story}: {self.hit}, {self.then}"


def killed(story: str, points: Iterable[Point], never: tuple[tuple[str, str], ...] = ()) -> list[Case]:
    """Killed at each: with who is to see to the end in turn. `never`: of which request and how not."""
    hits = [Hit(point, how) for point in points for how in KILLS if (point.at, how) not in never]
    return [Case(story, hit, THEN[at % len(THEN)]) for at, hit in enumerate(hits)]


def kill_guards(here: Tenant) -> None:
    for pid in guards(here.shell):
        kill(pid)


def type_one(here: Tenant, what: str) -> str:
    typed = here.shell.run(*{"status": ("status",), "reap": ("reap", "--yes")}[what])
    assert typed.returncode == 0, typed.stderr
    return typed.stderr


@dataclass(frozen=True)
class HalfMade:
    """A cluster whose `up` is killed as it waits for what it made."""

    name: str
    up: tuple[str, ...]
    look: str
    """The request by which it waits."""

    def make(self, here: Tenant) -> None:
        """The guard lives."""
        self._is_killed(here, Hit(Point(self.look), "after"), *self.up)

    def make_alone(self, here: Tenant) -> None:
        """The guard is killed first, while it has nothing to do: else it might have undone it all by then."""
        process = here.shell.start(*self.up, "--timeout", "5")
        asked = here.fake.requests
        until(lambda: any(here.saboteur.fits(self.look, one) for one in list(asked)), "it waits for it", HANG_S)
        kill_guards(here)
        assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate()

    def guard_is_hit(self, here: Tenant, hit: Hit, then: str) -> str:
        """What the one who sees to the end said."""
        strike = here.saboteur.expect_guard(here.shell, hit)
        self.make(here)
        until(strike.struck.is_set, "the guard's request", HANG_S)
        kill_guards(here)  # its child is what asks, and was hit
        until(lambda: not guards(here.shell), "the guard is dead")
        return type_one(here, then)

    def down_is_hit(self, here: Tenant, hit: Hit, then: str) -> str:
        self.make_alone(here)
        with held_guard_locks(here.shell.home):
            self._is_killed(here, hit, "down", self.name)
        return type_one(here, then)

    def reap_is_hit(self, here: Tenant, hit: Hit) -> str:
        """What a computer finds that knows nothing any more."""
        self.make_alone(here)
        here.lose_ledger()
        self._is_killed(here, hit, "reap", "--yes")
        return type_one(here, "reap")

    def _is_killed(self, here: Tenant, hit: Hit, *arguments: str) -> None:
        process = here.saboteur.start(here.shell, hit, *arguments)
        _, err = process.communicate(timeout=HANG_S)
        assert here.saboteur.struck(process), err
        assert process.returncode == KILLED, err
