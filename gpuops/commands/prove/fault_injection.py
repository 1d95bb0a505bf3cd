"""Outcomes that scenarios raise, each with one sentence, and the journals and provisioners that inject faults:
an answer that is lost, a process that is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuops.core.errors import RateLimited, Unknown
from gpuops.core.models import Intent, Journal, Offer, Resource
from gpuops.core.provider import Provisioner


class ContractBroken(Exception):
    """The provisioner broke the contract: the sentence names the promise and what was seen instead."""


class NotGuaranteed(Exception):
    """The provisioner declares that the provider cannot do this, or it cannot be observed from outside."""


class NotRunnable(Exception):
    """The scenario could not run: another one failed to make what it acts on, or the money ended first."""


@dataclass(frozen=True)
class Announcement:
    """One call of `journal.will`: what the provisioner announced before an effect."""

    kind: str
    mark: str
    token: str
    region: str


@dataclass
class RecordingJournal:
    """A journal that passes every call on and records it, in order. Raises ContractBroken for a call from another
    thread."""

    journal: Journal
    lines: list[Announcement | Resource] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self._here("will")
        self.journal.will(kind, mark, token, region)
        self.lines.append(Announcement(kind, mark, token, region))

    def got(self, resource: Resource) -> None:
        self._here("got")
        self.journal.got(resource)
        self.lines.append(resource)

    def _here(self, what: str) -> None:
        if threading.get_ident() != self.thread:
            raise ContractBroken(f"journal.{what} is called from another thread than create was")


@dataclass
class AnswerLosingJournal:
    """A journal that passes announcements on and drops the results, as if the answer had been lost."""

    journal: Journal
    lost: list[Resource] = field(default_factory=list)

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self.journal.will(kind, mark, token, region)

    def got(self, resource: Resource) -> None:
        self.lost.append(resource)


def kill_this_process() -> None:
    """SIGKILL, as a power cut would end this process."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class KillingJournal:
    """A journal that kills the process between the creation of a machine and its record in the ledger."""

    journal: Journal
    end: Callable[[], None] = kill_this_process

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self.journal.will(kind, mark, token, region)

    def got(self, resource: Resource) -> None:
        if resource.is_machine:
            self.end()
        self.journal.got(resource)


class AnswerLosingProvisioner:
    """A provisioner whose first `create` that works raises Unknown instead of answering."""

    def __init__(self, inner: Provisioner) -> None:
        self.inner = inner
        self.lost: list[Resource] = []
        self.has_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        if self.has_lost:
            return self.inner.create(offer, intent, journal)
        losing = AnswerLosingJournal(journal)
        try:
            self.lost = [*self.inner.create(offer, intent, losing)]
        except RateLimited:  # an answer, and it is called again
            for resource in losing.lost:
                journal.got(resource)
            raise
        self.has_lost = True
        raise Unknown("the answer of create was lost, on purpose", "it is looked up by its mark")
