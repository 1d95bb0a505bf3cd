"""Every limit of the SSH layer, in one place, so that tests can shorten them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Seconds, unless a name says otherwise."""

    connect_s: float = 10.0
    """Reaching a host and its SSH server's first words; each of the two."""
    login_s: float = 90.0
    """A whole login by the system's OpenSSH: a security key waits for a finger."""
    ping_s: float = 5.0
    """Silence after which the other side is asked whether it is there."""
    silence_s: float = 20.0
    """Silence after which a connection is dead."""
    idle_s: float = 30.0
    """How long a login is kept without users."""
    noise_s: float = 60.0
    """How long a program's start may take, with all that the shell's start-up files do."""
    close_s: float = 2.0
    """How long ending a program may hold up whoever ends it."""
    starts: int = 8
    """Logins at once per address: sshd refuses at random from the tenth on (MaxStartups 10:30:100)."""
    tries: int = 5
    retry_s: float = 30.0
    """How long refused starts are tried again."""
    logins: int = 3
    """Logins per host, where one does not carry enough programs (MaxSessions)."""
    programs: int = 8
    """Programs per login of the system's OpenSSH, below sshd's MaxSessions 10: others may share it."""


LIMITS = Limits()
