"""The errors of a login. Every error of paramiko, sockets and `ssh` becomes one of these.

NodeError
├── ConnectionLost           unreachable, ended, not an SSH server
│   └── Refused              the server closed the connection before the login: retried
├── HostKeyChanged           the host shows another key than the pinned one
└── Denied                   the host accepts none of our keys: never retried
    └── HungUp               it ended the connection instead of an answer
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Sequence

from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.core.format import one_line
from gpuops.transport.ssh.host_keys import fingerprint
from gpuops.transport.ssh.target import Target

CONNECTION_LOST_CODE = 255
"""The exit code of a program whose connection ended before its own was received; `ssh` uses the same."""
AGAIN = "check that the host is up and that its SSH server listens there"
MAX_SHOWN_CHARS = 200
"""Messages quote at most this much of a server's or a library's words."""


class Refused(ConnectionLost):
    """The server closed the connection before the login: too many logins at once, or it restarts."""


class Denied(NodeError):
    """The server accepts none of our keys."""


class HungUp(Denied):
    """The server ended the connection while keys were offered."""


class HostKeyChanged(NodeError):
    """The host presents a key that is not the pinned one."""


def again(error: NodeError) -> NodeError:
    """The same failure, for another thread to raise."""
    return type(error)(error.message, error.hint)


def unreachable(where: str, error: OSError) -> ConnectionLost:
    """The error for a TCP connection that could not be made."""
    if isinstance(error, socket.gaierror):
        return ConnectionLost(f"{where}: this name is not known to any name server", "check how it is spelt")
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return ConnectionLost(f"{where} does not answer", AGAIN + ", and that no firewall is in between")
    if isinstance(error, ConnectionRefusedError):
        return ConnectionLost(f"{where} refuses connections on this port", AGAIN)
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return Refused(f"{where} closed the connection before the login", AGAIN)
    return ConnectionLost(
        f"{where} cannot be reached: {one_line(error.strerror or str(error), MAX_SHOWN_CHARS)}", AGAIN
    )


def unpinned(target: Target) -> NodeError:
    """The error for a target without a host key."""
    return NodeError(
        f"no host key of {target.where} is known, and without one it is not logged in to",
        f"log in once with `ssh {target.where}`, or pass --accept-new",
    )


def changed(target: Target, got: str) -> HostKeyChanged:
    """The error for another host key. `got`: its fingerprint, or empty where `ssh` did not print it."""
    expected = " or ".join(_fingerprints(target.host_keys))
    return HostKeyChanged(
        f"the host key of {target.where} has changed: expected {expected}, got {got or 'another one'}; "
        "either the host was set up anew, or somebody stands in between",
        "ask whoever runs the host; nothing was sent to it",
    )


def _fingerprints(host_keys: Sequence[str]) -> list[str]:
    found = []
    for key in host_keys:
        try:
            found.append(fingerprint(key))
        except NodeError:
            found.append(one_line(key, MAX_SHOWN_CHARS))
    return found


def denied(
    target: Target,
    tried: Sequence[str],
    locked: Sequence[str],
    notes: Sequence[str] = (),
    kind: type[Denied] = Denied,
) -> Denied:
    """The error for a failed login. `tried`: keys that were offered; `locked`: keys that need a passphrase."""
    if locked:
        return kind(
            f"{target.where}: the key {locked[0]} is protected by a passphrase, and no agent holds it",
            f"run `ssh-add {locked[0]}`, then try again",
        )
    what = f"the keys that were tried: {', '.join(tried)}" if tried else "there was no key to try"
    more = f" ({'; '.join(notes)})" if notes else ""
    return kind(
        f"permission denied for {target.where}; {what}{more}",
        "pass --identity KEY with the key that this host knows, or add it to ~/.ssh/authorized_keys there",
    )


def ended(where: str) -> ConnectionLost:
    return ConnectionLost(f"the connection to {where} ended", "check the host and the network, then try again")


def crowded(where: str) -> ConnectionLost:
    return ConnectionLost(
        f"{where} takes no more programs at once", "raise MaxSessions in its sshd_config, or use fewer nodes on it"
    )


def noise(where: str, seen: bytes, errors: str, why: str) -> ConnectionLost:
    """The error for a program whose own output never began. `seen`: what came instead; `errors`: its stderr."""
    words = (
        one_line(errors.strip() or seen[-4 * MAX_SHOWN_CHARS :].decode(errors="replace"), MAX_SHOWN_CHARS)
        or "nothing was said"
    )
    return ConnectionLost(
        f"{where} {why} ({words})",
        "check that this user may run commands there, and what the start-up files of its shell do",
    )


FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{20,}")
REFUSED_MESSAGES = (
    "kex_exchange_identification",
    "banner exchange",
    "Connection closed by",
    "Connection reset by",
    "Exceeded MaxStartups",
    "Not allowed at this time",
    "mux_client",
    "Broken pipe",
)


def from_openssh(target: Target, words: str, locked: Sequence[str] = ()) -> NodeError:
    """The error for a system's `ssh` that ended with 255, from the `words` on its stderr."""
    if "Host key verification failed" in words or "HOST IDENTIFICATION HAS CHANGED" in words:
        found = FINGERPRINT.search(words)
        return changed(target, found[0] if found else "")
    if "Permission denied (" in words or "Too many authentication failures" in words:
        return denied(target, target.identities, locked, () if target.identities_only else ("and those of the agent",))
    last = one_line(words.strip().splitlines()[-1] if words.strip() else "ssh said nothing", MAX_SHOWN_CHARS)
    if "Could not resolve hostname" in words:
        return unreachable(target.where, socket.gaierror())
    if "Connection refused" in words:
        return unreachable(target.where, ConnectionRefusedError())
    if "timed out" in words:
        return unreachable(target.where, TimeoutError())
    if any(message in words for message in REFUSED_MESSAGES):
        return Refused(f"{target.where} closed the connection before the login ({last})", AGAIN)
    return ConnectionLost(f"{target.where} cannot be logged in to: {last}", AGAIN)
