"""One transport of paramiko: handshake, check of the host key, login, and the channels for programs.

`log_in` returns an OpenLogin, on which channels for programs are opened; `scan_host_key` only reads the host's key.
paramiko is imported when a host is first reached. Nothing but the handshake happens where a host presents another key
than those pinned in the Target.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuops.agent.workers import WORKERS, Job
from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.core.format import one_line
from gpuops.transport.ssh import errors, proxy
from gpuops.transport.ssh.errors import HostKeyChanged, HungUp
from gpuops.transport.ssh.host_keys import fingerprint, host_key_kind
from gpuops.transport.ssh.kept_handshakes import KeptHandshakes
from gpuops.transport.ssh.key_authentication import authenticate
from gpuops.transport.ssh.limits import GATE, Gate, Limits
from gpuops.transport.ssh.target import Target

if TYPE_CHECKING:
    import paramiko


def import_paramiko() -> None:
    """Import paramiko.

    A quarter of what that takes goes into `invoke`, by which it runs the `Match exec` of configuration files. It
    does without where there is none; here the system's `ssh` reads those files.
    """
    if "paramiko" in sys.modules or "invoke" in sys.modules:
        return
    sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]


WINDOW_BYTES = 8 << 20
"""Bytes a program may send before we have taken any: 100 MB/s at a round trip of 80 ms."""
RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")
"""How a key of type `ssh-rsa` signs nowadays."""


class LoginFull(Exception):
    """This login carries no more programs."""


class LoginGone(Exception):
    """This login is dead; nothing was started on it."""


class OpenLogin:
    """An open, verified, authenticated transport."""

    def __init__(self, target: Target, limits: Limits, transport: paramiko.Transport, wire: proxy.Wire) -> None:
        self.target = target
        self._limits = limits
        self._transport = transport
        self._wire = wire
        self._received_before = 0
        self._silent_s = 0.0
        self._keepalive: Job | None = None

    @property
    def alive(self) -> bool:
        return self._transport.is_active()

    def open_channel(self) -> paramiko.Channel:
        """Open a channel for one program. Raises LoginFull, LoginGone."""
        import paramiko

        try:
            return self._transport.open_session(window_size=WINDOW_BYTES, timeout=self._limits.silence_s)
        except (paramiko.SSHException, EOFError, OSError) as error:
            # The type of the exception does not say which: of two requests refused at once, one gets the other's error.
            raise (LoginFull if self.alive else LoginGone) from error

    def tick(self, passed_s: float) -> None:
        """Send a keepalive to a silent peer, and close a connection that stays silent. Called about once a second.

        paramiko's own keepalive requests no answer, and so never notices a peer that hangs.
        """
        if self._wire.received_count != self._received_before:
            self._received_before, self._silent_s = self._wire.received_count, 0.0
            return
        self._silent_s += passed_s
        if self._silent_s >= self._limits.silence_s:
            self.close()
        elif self._silent_s >= self._limits.ping_s and (self._keepalive is None or not self._keepalive.is_alive()):
            # In a thread, because a write blocks while the peer reads nothing.
            self._keepalive = WORKERS.start(self._send_keepalive, "ssh ping")

    def _send_keepalive(self) -> None:
        import paramiko

        try:
            self._transport.global_request("keepalive@openssh.com", wait=True)
        except (paramiko.SSHException, EOFError, OSError):
            pass  # the transport's own thread has seen it, or `tick` will

    def close(self) -> None:
        """Close the transport; never raises."""
        import paramiko

        self._wire.cut()  # wakes every thread at once
        try:
            self._transport.close()
        except (paramiko.SSHException, EOFError, OSError):
            pass  # it was ending by itself


def log_in(target: Target, limits: Limits) -> OpenLogin:
    """Log in, once. Raises Refused, ConnectionLost, HostKeyChanged, Denied, NodeError."""
    if not target.host_keys:
        raise errors.unpinned(target)
    kept = _KEPT.take(target.address)
    if kept is not None:
        try:
            return _log_in_on(target, limits, *kept)
        except (ConnectionLost, HostKeyChanged, HungUp):
            pass  # the server waited no longer, or showed another of its keys: it is asked anew
    return _log_in_on(target, limits, *handshake(target, limits.connect_s, target.host_keys))


def _log_in_on(target: Target, limits: Limits, wire: proxy.Wire, transport: paramiko.Transport) -> OpenLogin:
    try:
        verify_host_key(target, transport)
        authenticate(transport, target)
    except BaseException:
        end_transport(wire, transport)
        raise
    return OpenLogin(target, limits, transport, wire)


def handshake(target: Target, timeout_s: float, prefer: Sequence[str]) -> tuple[proxy.Wire, paramiko.Transport]:
    """A transport that has exchanged keys with the host and sent it nothing else. Raises Refused, ConnectionLost."""
    import_paramiko()
    import paramiko

    silence_logger()
    wire = proxy.dial(target, timeout_s)
    transport = paramiko.Transport(wire)  # type: ignore[arg-type]
    transport.banner_timeout = timeout_s
    transport.packetizer.start_handshake = _without_timer  # type: ignore[assignment]
    options = transport.get_security_options()
    gcm = [cipher for cipher in options.ciphers if "gcm" in cipher]
    options.ciphers = tuple(gcm + [cipher for cipher in options.ciphers if cipher not in gcm])
    options.key_types = order_key_types(prefer, options.key_types)
    begin = time.monotonic()
    try:
        transport.start_client(timeout=2 * timeout_s)
        transport.get_remote_server_key()
    except BaseException as error:
        late = time.monotonic() - begin >= timeout_s
        end_transport(wire, transport)
        why = wire.failure()
        if isinstance(error, paramiko.SSHException | EOFError | OSError):
            raise why or _explain_failed_handshake(target, error, bool(wire.received_count), late) from error
        raise
    return wire, transport


def order_key_types(host_keys: Sequence[str], types: Sequence[str]) -> tuple[str, ...]:
    """Key algorithms in the order in which to ask for them: those of `host_keys` (lines or types) first."""
    preferred: list[str] = []
    for key in host_keys:
        kind = host_key_kind(key)
        preferred += RSA_SIGNATURES if kind == "ssh-rsa" else [kind]
    first = [kind for kind in dict.fromkeys(preferred) if kind in types]
    return (*first, *(kind for kind in types if kind not in first))


def read_host_key(transport: paramiko.Transport) -> str:
    """The host's key, as a line."""
    key = transport.get_remote_server_key()
    return f"{key.get_name()} {key.get_base64()}"


def verify_host_key(target: Target, transport: paramiko.Transport) -> None:
    """Raises HostKeyChanged unless the host presents one of the pinned keys."""
    presented = read_host_key(transport)
    for pinned in target.host_keys:
        if pinned.split()[:2] == presented.split():
            return
    raise errors.changed(target, fingerprint(presented))


def end_transport(wire: proxy.Wire, transport: paramiko.Transport) -> None:
    """Close a transport that is not used for a login."""
    wire.cut()
    transport.close()
    wire.close()


_KEPT = KeptHandshakes(end_transport)


def _without_timer(_timeout: float) -> None:
    """paramiko would begin a thread for each handshake, to end it late; `start_client` has a limit itself."""


def _explain_failed_handshake(target: Target, error: Exception, has_received: bool, late: bool) -> NodeError:
    """The error for a handshake that failed. `has_received`: the server sent bytes; `late`: the time was up."""
    import paramiko

    where = target.where
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return ConnectionLost(
            f"{where} and paramiko have no algorithm in common ({one_line(str(error), errors.MAX_SHOWN_CHARS)})",
            "upgrade the SSH server on the host",
        )
    if "Indecipherable" in str(error):
        return ConnectionLost(f"what answers at {where} is no SSH server", "check the port")
    if not late:
        return errors.Refused(f"{where} closed the connection before the login", errors.AGAIN)
    if has_received:
        return ConnectionLost(f"{where} stopped answering while the connection was made", errors.AGAIN)
    return errors.Refused(f"{where} takes connections but sends no SSH banner", errors.AGAIN)


def silence_logger() -> None:
    """paramiko prints tracebacks of what it also raises."""
    logger = logging.getLogger("paramiko")
    logger.setLevel(logging.CRITICAL + 1)
    logger.propagate = False


def scan_host_key(
    target: Target, timeout_s: float = 15.0, prefer: Sequence[str] = (), gate: Gate = GATE
) -> tuple[str, ...]:
    """The host key that the server presents, of the first type in `prefer` (types, or whole keys) that it has.

    One key, from one connection, on which a login by paramiko that follows goes on. Raises ConnectionLost.
    """

    def scan() -> tuple[str, ...]:
        wire, transport = handshake(target, timeout_s, prefer)
        shown = read_host_key(transport)
        if target.by_system:
            end_transport(wire, transport)
        else:
            _KEPT.keep(target.address, wire, transport)
        return (shown,)

    return gate.start(target.address, scan)
