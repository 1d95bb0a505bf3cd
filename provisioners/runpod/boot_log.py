"""A pod's own log: its lines out of a stream of events, and what in them will not heal. Pure."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from provisioners.kit.container_images import NEVER_PULLED

DRIVER = re.compile(r"unsatisfied condition: (cuda\s*>=\s*[\d.]+)", re.IGNORECASE)
NOT_STARTED = re.compile(
    r"error (?:creating|starting) container|OCI runtime \w+ failed|executable file not found|exec format error|"
    r"container exited|exited with (?:exit )?(?:code|status)",
    re.IGNORECASE,
)
STARTS = re.compile(r"start container\b", re.IGNORECASE)
"""What the host says each time: a container whose command ends is started again, for ever."""
NOT_PUBLIC_REASON = (
    "its machine has no public address ({address} is behind another's): take --cloud secure, or another GPU or region"
)
UNPACKED = re.compile(r"failed to register layer|cannot be mapped to a host ID", re.IGNORECASE)
"""Its machine's fault: another one unpacks the same image (field report, dstack #2729)."""
NOT_MADE = re.compile(r"error creating container", re.IGNORECASE)
"""Its machine's fault where it is said again and again (field report, dstack #3843), unless by BAD_COMMAND."""
BAD_COMMAND = re.compile(r"executable file not found|exec format error|no such file or directory", re.IGNORECASE)
"""What no machine could run."""
MAX_STARTS = 3
"""A container that was started, or failed to be made, this often fails for good."""
MAX_LINE_CHARS = 200


def parse_lines(stream: bytes) -> list[str]:
    """What was said, in order. An event that was cut short is left out."""
    found = []
    for row in stream.decode(errors="replace").splitlines():
        if not row.startswith("data:"):
            continue
        try:
            event = json.loads(row[5:])
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("line"), str):
            found.append(_printable(event["line"]))
    return [line for line in found if line]


def find_permanent_failure(log_lines: Sequence[str]) -> str:
    """The sentence for what no waiting heals; empty where nothing of the kind was said."""
    for line in reversed(log_lines):
        if match := DRIVER.search(line):
            return f"its machine's driver is too old for the image ({match[1]}): --min-cuda asks for newer ones"
        if NEVER_PULLED.search(line):
            return f"its image cannot be pulled: {shorten(line)}"
    return ""


def find_start_failure(log_lines: Sequence[str]) -> str:
    """Why the container of a pod that has stopped never was of use, in its host's own words; empty where they do not
    say that it lay with its image."""
    if why := find_permanent_failure(log_lines):
        return why
    if line := _last_match(NOT_STARTED, log_lines):
        return f"its container does not start: {shorten(line)}"
    return find_restart_loop(log_lines, 2)


def find_restart_loop(log_lines: Sequence[str], least: int) -> str:
    """The sentence for a container that ends whenever it is started, `least` times or more; else empty."""
    times = sum(bool(STARTS.match(line)) for line in log_lines)
    return f"its container ended by itself each of the {times} times that it was started" if times >= least else ""


def shorten(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}…"


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else " " for char in line).rstrip()


@dataclass(frozen=True)
class BootFault:
    """Why a pod will never be ready; `machine`: another one may be."""

    say: str = ""
    machine: bool = False


@dataclass(frozen=True)
class BootObservation:
    """What is known of a pod that is no node yet. Times are seconds of one monotonic clock."""

    since: float
    """When its log was read last; before that, when the pod was first looked at."""
    hidden_since: float | None = None
    """Since when its SSH port has had an address that is not public."""
    fault: BootFault = BootFault()

    def after_look(self, hidden: str, now: float) -> BootObservation:
        """The same at the next look. `hidden`: the address that is not public, if it has one."""
        since = now if self.hidden_since is None else self.hidden_since
        return dataclasses.replace(self, hidden_since=since if hidden else None)

    def after_log(self, fault: BootFault, now: float) -> BootObservation:
        """The same once its log was read. A log without a fault does not take an earlier fault back."""
        return dataclasses.replace(self, since=now, fault=fault if fault.say else self.fault)

    def verdict(self, hidden: str, now: float, hidden_limit_s: float) -> BootFault:
        """Why it will never be ready, as far as that is known."""
        if self.hidden_since is not None and now - self.hidden_since >= hidden_limit_s:
            return BootFault(NOT_PUBLIC_REASON.format(address=hidden))
        return self.fault


def diagnose(log_lines: Sequence[str]) -> BootFault:
    """What its host's log tells of a pod that is on its way for a while."""
    if why := find_permanent_failure(log_lines):
        return BootFault(why)
    if line := _last_match(UNPACKED, log_lines):
        return BootFault(f"its machine cannot unpack the image: {shorten(line)}", machine=True)
    failed = [line for line in log_lines if NOT_MADE.search(line)]
    if len(failed) >= MAX_STARTS:
        return BootFault(f"its container cannot be made: {shorten(failed[-1])}", not BAD_COMMAND.search(failed[-1]))
    return BootFault(find_restart_loop(log_lines, MAX_STARTS))


def _last_match(pattern: re.Pattern[str], log_lines: Sequence[str]) -> str:
    return next((line for line in reversed(log_lines) if pattern.search(line)), "")
