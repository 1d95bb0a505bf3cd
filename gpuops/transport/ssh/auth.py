"""Which keys are shown to a host, in which order, and what it means when none is taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuops.transport.ssh import errors, keyfiles
from gpuops.transport.ssh.target import Target

if TYPE_CHECKING:
    import paramiko


AGENT_S = 5.0
"""How long a key agent may take to say which keys it holds."""


@dataclass
class Told:
    """What came of each key, for the message."""

    tried: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def authenticate(transport: paramiko.Transport, target: Target) -> None:
    """Log in with the first key that is taken. Raises Denied, ConnectionLost."""
    import paramiko

    told = Told()
    agent = _agent(told)
    try:
        for name, key in _keys(agent, target, told):
            try:
                more = transport.auth_publickey(target.user, key)
            except paramiko.BadAuthenticationType as error:
                told.notes.append(f"it takes only: {', '.join(error.allowed_types)}")
                raise errors.denied(target, told.tried, [], told.notes) from error
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error):
                    raise errors.ended(target.where) from error
                told.tried.append(name)
                if not transport.is_active():
                    told.notes.append("then it hung up")
                    raise errors.denied(target, told.tried, told.locked, told.notes) from error
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
    raise errors.denied(target, told.tried, told.locked, told.notes)


def _agent(told: Told) -> paramiko.Agent | None:
    """The user's key agent; None where it fails, or hangs as one does whose forwarded socket is stale."""
    import paramiko

    found: list[paramiko.Agent] = []

    def ask() -> None:
        try:
            found.append(paramiko.Agent())
        except (paramiko.SSHException, OSError, EOFError) as error:
            told.notes.append(f"the key agent failed: {errors.shown(str(error))}")

    asking = threading.Thread(target=ask, daemon=True, name="key agent")
    asking.start()
    asking.join(AGENT_S)
    if asking.is_alive():
        told.notes.append("the key agent does not answer")
    return found[0] if found else None


def _keys(
    agent: paramiko.Agent | None, target: Target, told: Told
) -> Iterator[tuple[str, paramiko.PKey | paramiko.AgentKey]]:
    """Agent keys that belong to an identity, identities from their files, then the agent's other keys.

    A server counts what it is shown (MaxAuthTries 6), so the keys meant for this host come first.
    """
    held = {key.asbytes(): key for key in (agent.get_keys() if agent else ()) if _usable(key)}
    files = []
    for path in target.identities:
        blob = keyfiles.public_blob(path)
        if blob and blob in held:
            yield f"{path} (agent)", held.pop(blob)
        else:
            files.append(path)
    for path in files:
        if keyfiles.is_locked(path):
            told.locked.append(path)
        elif key := _load(path, told):
            yield path, key
    if not target.identities_only:
        for key in held.values():
            yield f"{key.get_name()} (agent)", key


def _usable(key: paramiko.AgentKey) -> bool:
    name = key.get_name()
    return not name.startswith("sk-") and "-cert-" not in name


def _load(path: str, told: Told) -> paramiko.PKey | None:
    import paramiko

    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        told.notes.append(f"{path} is not there")
    except OSError as error:
        told.notes.append(f"{path} cannot be read: {error.strerror}")
    except Exception as error:  # two libraries read key files, and neither says what it may raise
        told.notes.append(f"{path} is no key that can be used: {errors.shown(str(error))}")
    return None
