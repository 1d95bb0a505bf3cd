"""How a scenario may end other than well: each is raised with one sentence."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuops.core.errors import Unknown
from gpuops.core.models import Intent, Journal, Offer, Resource
from gpuops.core.provider import Provisioner


class Broken(Exception):
    """The contract is not kept: the sentence says which promise, and what was seen instead."""


class NotGuaranteed(Exception):
    """The provider cannot do this, and the provisioner has said so; or nobody can tell from outside."""


class Missing(Exception):
    """What the scenario acts on does not exist, since another scenario has failed; or the money ends first."""


@dataclass(frozen=True)
class Will:
    """What was said before an effect."""

    kind: str
    mark: str
    token: str
    region: str


@dataclass
class Spy:
    """A journal that passes everything on and remembers it, in order. Raises Broken for a call from another thread."""

    journal: Journal
    lines: list[Will | Resource] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self._here("will")
        self.journal.will(kind, mark, token, region)
        self.lines.append(Will(kind, mark, token, region))

    def got(self, resource: Resource) -> None:
        self._here("got")
        self.journal.got(resource)
        self.lines.append(resource)

    def _here(self, what: str) -> None:
        if threading.get_ident() != self.thread:
            raise Broken(f"journal.{what} is called from another thread than create was")


@dataclass
class Deaf:
    """A journal that hears what is intended and never what came of it: the answer is lost."""

    journal: Journal
    lost: list[Resource] = field(default_factory=list)

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self.journal.will(kind, mark, token, region)

    def got(self, resource: Resource) -> None:
        self.lost.append(resource)


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Fatal:
    """A journal under which the process dies: a machine was made, and nobody wrote it down."""

    journal: Journal
    end: Callable[[], None] = die

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self.journal.will(kind, mark, token, region)

    def got(self, resource: Resource) -> None:
        if resource.kind == "machine":
            self.end()
        self.journal.got(resource)


class Lossy:
    """A provisioner whose first `create` does its work, and whose answer nobody gets."""

    def __init__(self, inner: Provisioner) -> None:
        self.inner = inner
        self.lost: list[Resource] = []
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        self.calls += 1
        if self.calls > 1:
            return self.inner.create(offer, intent, journal)
        deaf = Deaf(journal)
        made = self.inner.create(offer, intent, deaf)
        self.lost = [*made]
        raise Unknown("the answer of create was lost, on purpose", "it is looked up by its mark")
