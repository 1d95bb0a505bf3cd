"""How a pod comes up, judged by what is seen of it: its state, its address, its host's log, and for how long. Pure.

`status` stays RUNNING for a container that exits and is started again, for ever (field report), and a pod whose image
cannot be unpacked stays in any state on the way: what is wrong stands in the log of its host alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioners.runpod import logs, pods

TIMES = 3
"""So often a container was started, or not made, until that is no chance any more."""
UNPACKED = re.compile(r"failed to register layer|cannot be mapped to a host ID", re.IGNORECASE)
"""Its machine's fault: another one unpacks the same image (field report, dstack #2729)."""
NOT_MADE = re.compile(r"error creating container", re.IGNORECASE)
"""Its machine's fault where it is said again and again (field report, dstack #3843),"""
BAD_COMMAND = re.compile(r"executable file not found|exec format error|no such file or directory", re.IGNORECASE)
"""but for what no machine could run."""


@dataclass(frozen=True)
class Why:
    """Why a pod will never be ready; `machine`: another one may be."""

    say: str = ""
    machine: bool = False


@dataclass(frozen=True)
class Seen:
    """Of a pod that is no node yet; moments in seconds, of one clock."""

    since: float
    """When its log was last looked at, or the pod itself was first."""
    hidden: float | None = None
    """Since when its SSH port has an address that is not public."""
    why: Why = Why()

    def at(self, pod: Mapping[str, Any], now: float) -> Seen:
        """The same a look later."""
        hidden = bool(pods.hidden(pod))
        return dataclasses.replace(self, hidden=(now if self.hidden is None else self.hidden) if hidden else None)

    def read(self, why: Why, now: float) -> Seen:
        """The same once its log was looked at; a log that tells nothing more takes nothing back."""
        return dataclasses.replace(self, since=now, why=why if why.say else self.why)

    def judged(self, pod: Mapping[str, Any], now: float, patience_s: float) -> Why:
        """Why it will never be ready, as far as that is known."""
        if self.hidden is not None and now - self.hidden >= patience_s:
            return Why(pods.NOT_PUBLIC.format(address=pods.hidden(pod)))
        return self.why


def judge(said: Sequence[str]) -> Why:
    """What its host's log tells of a pod that is on its way for a while."""
    if why := logs.hopeless(list(said)):
        return Why(why)
    if line := _last(UNPACKED, said):
        return Why(f"its machine cannot unpack the image: {logs.short(line)}", machine=True)
    failed = [line for line in said if NOT_MADE.search(line)]
    if len(failed) >= TIMES:
        return Why(f"its container cannot be made: {logs.short(failed[-1])}", not BAD_COMMAND.search(failed[-1]))
    return Why(logs.looping(said, TIMES))


def _last(pattern: re.Pattern[str], said: Sequence[str]) -> str:
    return next((line for line in reversed(said) if pattern.search(line)), "")
