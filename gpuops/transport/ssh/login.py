"""One login by paramiko: reach the host, see that it is the host, show it our keys. Only here and in `auth`,
`streams` and `paramikologin` paramiko is known; it is imported when it is needed, since that takes 100 ms.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.transport.ssh import auth, errors, hostkeys, library, wire
from gpuops.transport.ssh.limits import Limits
from gpuops.transport.ssh.target import Target

if TYPE_CHECKING:
    import paramiko

WINDOW = 8 << 20
"""Bytes a program may send before we have taken any: 100 MB/s at a round trip of 80 ms."""
RSA = ("rsa-sha2-512", "rsa-sha2-256")
"""How a key of type `ssh-rsa` signs nowadays."""


class Full(Exception):
    """This login carries no more programs."""


class Gone(Exception):
    """This login is dead; nothing was started on it."""


class Line:
    """An open, verified, authenticated transport."""

    def __init__(self, target: Target, limits: Limits, transport: paramiko.Transport, below: wire.Wire) -> None:
        self.target = target
        self._limits = limits
        self._transport = transport
        self._wire = below
        self._heard = 0
        self._silent_s = 0.0
        self._asking: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        return self._transport.is_active()

    def session(self) -> paramiko.Channel:
        """A channel for one program. Raises Full, Gone."""
        import paramiko

        try:
            return self._transport.open_session(window_size=WINDOW, timeout=self._limits.silence_s)
        except (paramiko.SSHException, EOFError, OSError) as error:
            # Which exception it is does not tell: of two that are refused at once, one gets the other's.
            raise (Full if self.alive else Gone) from error

    def tick(self, passed_s: float) -> None:
        """To be called about once a second: asks a silent peer whether it is there, and ends a dead connection.

        paramiko's own keepalive asks for no answer, and so never notices a peer that hangs.
        """
        if self._wire.heard != self._heard:
            self._heard, self._silent_s = self._wire.heard, 0.0
            return
        self._silent_s += passed_s
        if self._silent_s >= self._limits.silence_s:
            self.close()
        elif self._silent_s >= self._limits.ping_s and (self._asking is None or not self._asking.is_alive()):
            # In a thread, because a write waits where the peer takes nothing.
            self._asking = threading.Thread(target=self._ask, daemon=True, name="ssh ping")
            self._asking.start()

    def _ask(self) -> None:
        import paramiko

        try:
            self._transport.global_request("keepalive@openssh.com", wait=True)
        except (paramiko.SSHException, EOFError, OSError):
            pass  # the transport's own thread has seen it, or `tick` will

    def close(self) -> None:
        """End it; never raises."""
        import paramiko

        self._wire.cut()  # wakes every thread at once
        try:
            self._transport.close()
        except (paramiko.SSHException, EOFError, OSError):
            pass  # it was ending by itself


def open_line(target: Target, limits: Limits) -> Line:
    """Log in, once. Raises Refused, ConnectionLost, HostKeyChanged, Denied, NodeError."""
    if not target.host_keys:
        raise errors.unpinned(target)
    below, transport = handshake(target, limits.connect_s, target.host_keys)
    try:
        verify(target, transport)
        auth.authenticate(transport, target)
    except BaseException:
        end(below, transport)
        raise
    return Line(target, limits, transport, below)


def handshake(target: Target, timeout_s: float, prefer: Sequence[str]) -> tuple[wire.Wire, paramiko.Transport]:
    """A transport that has met the host and told it nothing. Raises Refused, ConnectionLost."""
    library.load()
    import paramiko

    silence_logger()
    below = wire.dial(target, timeout_s)
    transport = paramiko.Transport(below)  # type: ignore[arg-type]
    transport.banner_timeout = transport.handshake_timeout = timeout_s
    options = transport.get_security_options()
    gcm = [cipher for cipher in options.ciphers if "gcm" in cipher]
    options.ciphers = tuple(gcm + [cipher for cipher in options.ciphers if cipher not in gcm])
    options.key_types = preferred(prefer, options.key_types)
    begin = time.monotonic()
    try:
        transport.start_client(timeout=2 * timeout_s)
        transport.get_remote_server_key()
    except BaseException as error:
        late = time.monotonic() - begin >= timeout_s
        end(below, transport)
        why = below.complaint()
        if isinstance(error, paramiko.SSHException | EOFError | OSError):
            raise why or _no_handshake(target, error, bool(below.heard), late) from error
        raise
    return below, transport


def preferred(keys: Sequence[str], types: Sequence[str]) -> tuple[str, ...]:
    """Key algorithms in the order in which to ask for them: those of `keys` (lines or types) first."""
    wanted: list[str] = []
    for key in keys:
        kind = hostkeys.kind(key)
        wanted += RSA if kind == "ssh-rsa" else [kind]
    first = [kind for kind in dict.fromkeys(wanted) if kind in types]
    return (*first, *(kind for kind in types if kind not in first))


def presented(transport: paramiko.Transport) -> str:
    """The host's key, as a line."""
    key = transport.get_remote_server_key()
    return f"{key.get_name()} {key.get_base64()}"


def verify(target: Target, transport: paramiko.Transport) -> None:
    """Raises HostKeyChanged unless the host presents one of the pinned keys."""
    got = presented(transport)
    for pinned in target.host_keys:
        if pinned.split()[:2] == got.split():
            return
    raise errors.changed(target, hostkeys.fingerprint(got))


def end(below: wire.Wire, transport: paramiko.Transport) -> None:
    """Close a transport that came to nothing. Its timer would hold up the end of this process."""
    below.cut()
    transport.close()
    transport.packetizer.complete_handshake()
    below.close()


def _no_handshake(target: Target, error: Exception, heard: bool, late: bool) -> NodeError:
    """What it means that the two sides did not come to terms. `heard`: the server said something."""
    import paramiko

    where = target.where
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return ConnectionLost(
            f"{where} and paramiko have no algorithm in common ({errors.shown(str(error))})",
            "upgrade the SSH server on the host",
        )
    if "Indecipherable" in str(error):
        return ConnectionLost(f"what answers at {where} is no SSH server", "check the port")
    if not late:
        return errors.Refused(f"{where} closed the connection before the login", errors.AGAIN)
    if heard:
        return ConnectionLost(f"{where} stopped answering while the connection was made", errors.AGAIN)
    return errors.Refused(f"{where} takes connections but sends no SSH banner", errors.AGAIN)


def silence_logger() -> None:
    """paramiko prints tracebacks of what it also raises."""
    logger = logging.getLogger("paramiko")
    logger.setLevel(logging.CRITICAL + 1)
    logger.propagate = False
