"""Login by key on an open transport of paramiko: which keys are offered, in which order, and why none was taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuops.agent.workers import WORKERS
from gpuops.core.format import one_line
from gpuops.transport.ssh import errors, private_keys
from gpuops.transport.ssh.target import Target

if TYPE_CHECKING:
    import paramiko


KEY_AGENT_TIMEOUT_S = 5.0
"""How long a key agent may take to say which keys it holds."""


@dataclass
class KeyAttempts:
    """What happened to each key, for the message of a failed login."""

    tried: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def authenticate(transport: paramiko.Transport, target: Target) -> None:
    """Log in with the first key that the server accepts. Raises Denied, ConnectionLost."""
    import paramiko

    attempts = KeyAttempts()
    agent = _connect_key_agent(attempts)
    try:
        for name, key in _offer_keys(agent, target, attempts):
            try:
                more = transport.auth_publickey(target.user, key)
            except paramiko.BadAuthenticationType as error:
                attempts.notes.append(f"it takes only: {', '.join(error.allowed_types)}")
                raise errors.denied(target, attempts.tried, [], attempts.notes) from error
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error):
                    raise errors.ended(target.where) from error
                attempts.tried.append(name)
                if not transport.is_active():
                    attempts.notes.append("then it hung up")
                    raise errors.denied(
                        target, attempts.tried, attempts.locked, attempts.notes, errors.HungUp
                    ) from error
                continue
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise errors.ended(target.where) from error
            if more:
                raise errors.Denied(
                    f"{target.where} asks for more than a key ({', '.join(more)})",
                    "gpuops cannot answer questions: allow this user to log in with a key alone",
                )
            return
    finally:
        if agent is not None:
            agent.close()
    raise errors.denied(target, attempts.tried, attempts.locked, attempts.notes)


def _connect_key_agent(attempts: KeyAttempts) -> paramiko.Agent | None:
    """The user's key agent; None where it fails, or hangs as one does whose forwarded socket is stale."""
    import paramiko

    agents: list[paramiko.Agent] = []

    def connect() -> None:
        try:
            agents.append(paramiko.Agent())
        except (paramiko.SSHException, OSError, EOFError) as error:
            attempts.notes.append(f"the key agent failed: {one_line(str(error), errors.MAX_SHOWN_CHARS)}")

    if not WORKERS.start(connect, "key agent").join(KEY_AGENT_TIMEOUT_S):
        attempts.notes.append("the key agent does not answer")
    return agents[0] if agents else None


def _offer_keys(
    agent: paramiko.Agent | None, target: Target, attempts: KeyAttempts
) -> Iterator[tuple[str, paramiko.PKey | paramiko.AgentKey]]:
    """Agent keys that belong to an identity, identities from their files, then the agent's other keys.

    A server counts what it is shown (MaxAuthTries 6), so the keys meant for this host come first.
    """
    held = {key.asbytes(): key for key in (agent.get_keys() if agent else ()) if _is_usable(key)}
    files = []
    for path in target.identities:
        blob = private_keys.public_blob(path)
        if blob and blob in held:
            yield f"{path} (agent)", held.pop(blob)
        else:
            files.append(path)
    for path in files:
        if private_keys.is_locked(path):
            attempts.locked.append(path)
        elif key := _load_key(path, attempts):
            yield path, key
    if not target.identities_only:
        for key in held.values():
            yield f"{key.get_name()} (agent)", key


def _is_usable(key: paramiko.AgentKey) -> bool:
    name = key.get_name()
    return not name.startswith("sk-") and "-cert-" not in name


def _load_key(path: str, attempts: KeyAttempts) -> paramiko.PKey | None:
    import paramiko

    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        attempts.notes.append(f"{path} is not there")
    except OSError as error:
        attempts.notes.append(f"{path} cannot be read: {error.strerror}")
    except Exception as error:  # two libraries read key files, and neither says what it may raise
        attempts.notes.append(f"{path} is no key that can be used: {one_line(str(error), errors.MAX_SHOWN_CHARS)}")
    return None
