"""A machine that was rented becomes a node: a host key of its own, the agent, a life of its own.

What a provider gives is a machine that can be logged in to. Where its first host key travelled through the provider,
it is replaced here, in the first conversation that was verified with it; its private half is of no use from then on.
Two steps, so that the ledger knows the new key before the machine shows it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.core.models import Resource
from gpuops.core.provider import Provisioner, is_rented
from gpuops.ledger.store import ClusterRow
from gpuops.nodes import bootstrap
from gpuops.transport.bulk import exchange
from gpuops.transport.connection import Connection
from gpuops.transport.dial import connect

STEP_S = 55.0
"""How long each step may be silent, in seconds."""

NEW_KEY = r"""
exec 2>&1
umask 077
cd /etc/ssh || exit 0
[ -f gpuops_new_key ] || { rm -f gpuops_new_draft gpuops_new_draft.pub
    ssh-keygen -q -t ed25519 -N '' -C '' -f gpuops_new_draft </dev/null &&
    mv -f gpuops_new_draft.pub gpuops_new_key.pub && mv -f gpuops_new_draft gpuops_new_key; }
printf 'key %s\n' "$(cat gpuops_new_key.pub)"
exit 0
"""
"""A key is made beside the one in use; asked again, it is the same."""
SHOW_KEY = r"""
exec 2>&1
cd /etc/ssh || exit 0
if [ -f gpuops_new_key ]; then
    chmod 600 gpuops_new_key && cp -f gpuops_new_key.pub ssh_host_ed25519_key.pub &&
    : >.gpuops-replaced && mv -f gpuops_new_key ssh_host_ed25519_key && rm -f gpuops_new_key.pub || exit 0
fi
pid=$$ server=
while [ "$pid" -gt 1 ]; do
    pid=$(awk '/^PPid:/ { print $2 }' "/proc/$pid/status")
    [ "$pid" -gt 0 ] || break
    case $(cat "/proc/$pid/comm") in sshd*) server=$pid ;; esac
done
[ -n "$server" ] && kill -HUP "$server" && printf 'done\n'
exit 0
"""
"""The new key takes the old one's place, and the server, the uppermost sshd that this shell came from, reads it."""
STANDING = r"""
watch=$1
umask 077
pid=$(cat "$watch/pid" 2>/dev/null)
if [ -n "$pid" ]; then
    kill -0 "$pid" 2>/dev/null && printf 'on\n'
else
    [ -n "$(find "$watch/beat" -mmin -2 2>/dev/null)" ] && printf 'on\n'
fi
[ -d "$watch" ] || exit 0
cat >"$watch/revive.draft" && mv -f "$watch/revive.draft" "$watch/revive" && exit 0
"""
"""Whether the watchdog that came with the machine is there, as a process or by its beat; it is told how the node is
started anew."""


def wanted(machine: Resource) -> bool:
    """Whether this is a machine that can be logged in to, and no node yet."""
    return machine.data.get("connection") == "ssh" and bool(machine.data.get("target")) and not is_node(machine)


def is_node(machine: Resource) -> bool:
    return bool(machine.data.get("artefact"))


def merged(known: Resource, seen: Resource) -> Resource:
    """What a provider says of a machine now, over what is known of it: what was found out there, it never knew."""
    data: dict[str, Any] = {**known.data, **seen.data}
    if known.data.get("keys") and data.get("target"):
        data["target"] = {**data["target"], "host_keys": known.data["keys"]}
    return dataclasses.replace(seen, data=data)


def met(machine: Resource, index: int) -> Resource:
    """The first look at a machine, and the key that it is to show from now on beside the one it shows.

    Raises NodeError, ConnectionLost. Asked again it changes nothing.
    """
    connection = connect(machine, index)
    try:
        found = bootstrap.probe_machine(connection)
        told = {"home": found.home, "python": found.python}
        if machine.data.get("throwaway_key"):
            first, key = list(machine.data["target"]["host_keys"]), _new_key(connection, _as_root(machine))
            return _with(machine, {**told, "keys": [*first, *([key] if key not in first else [])]})
        return _with(machine, told)
    finally:
        connection.close()


def taken_over(
    provisioner: Provisioner, row: ClusterRow, owner: str, agent: Path, index: int, machine: Resource
) -> Resource:
    """A machine that was `met`, as a node whose agent answers. Raises NodeError, ConnectionLost."""
    data = machine.data
    if data.get("throwaway_key"):
        machine = _own_key(machine, index)
    root = str(data.get("root") or f"{data['home']}/.gpuops-{owner}")
    token = f"{data.get('token') or f'{row.token}-{index}'}"
    machine = _with(machine, {"root": root, "artefact": agent.stem, "token": token})
    connection = connect(machine, index)
    try:
        path = bootstrap.install_agent(connection, root, agent)
        folder = f"{root}/{row.name}/n{index}"
        watch = str(data.get("boot_watch") or "")
        rented = is_rented(provisioner)
        node = {
            "cluster": row.name,
            "owner": owner,
            "index": index,
            "mark": machine.name,
            "token": token,
            "end": provisioner.self_destruct(machine),
            "gpus": data.get("gpus"),
            "cores_share": data.get("cores_share"),
            "artefact": agent.stem,
            "boot_watch": watch or None,
            "notices": data.get("notices"),
            "scratch": data.get("scratch") if rented else None,
            "rented": rented,
        }
        boot_in = max(1.0, row.boot_deadline - time.time())
        bootstrap.init(connection, str(data["python"]), path, folder, {"node": node, "lease": {"boot_in": boot_in}})
        if watch:
            argv = [str(data["python"]), "-I", path, "init", "--node", folder, "--revive"]
            machine = _with(machine, {"watched": _standing(connection, machine, watch, argv)})
        return machine
    finally:
        connection.close()


def recognised(machine: Resource, index: int, cluster: str, owner: str) -> Resource:
    """A machine that was made a node before, of which the ledger knows no more: what its disk and our own tell.

    The key that it shows stands in the cluster's known_hosts file here. Raises NodeError, ConnectionLost.
    """
    from gpuops.transport import ssh, validation

    trusted = Path(machine.data["ssh_folder"]) / f"{cluster}.known_hosts"
    if keys := ssh.known_keys(ssh.alias(cluster, index), 22, [str(trusted)]):
        machine = _with(machine, {"keys": list(keys), "throwaway_key": False})
    connection = connect(machine, index)
    try:
        found = bootstrap.probe_machine(connection)
        root = str(machine.data.get("root") or f"{found.home}/.gpuops-{owner}")
        words = _said(
            connection, ["sh", "-c", 'cat "$1" 2>/dev/null; exit 0', "sh", f"{root}/{cluster}/n{index}/node.json"]
        )
        settings = validation.parse_json(words.encode() or b"{}")
        if not (isinstance(settings, dict) and isinstance(settings.get("artefact"), str) and settings["artefact"]):
            raise NodeError(f"{machine.name} never became a node", "there is nothing on it to take back: gpuops reap")
        told = {"home": found.home, "python": found.python, "root": root, "artefact": settings["artefact"]}
        return _with(machine, told)
    except ValueError as error:
        raise NodeError(f"what {machine.name} says of itself cannot be read", "end it: gpuops reap") from error
    finally:
        connection.close()


def _with(machine: Resource, data: Mapping[str, Any]) -> Resource:
    """The same with more known of it; a new list of keys is what is pinned."""
    joined = {**machine.data, **data}
    if "keys" in data:
        joined["target"] = {**joined["target"], "host_keys": data["keys"]}
    return dataclasses.replace(machine, data=joined)


def _as_root(machine: Resource) -> list[str]:
    """What to write before a command that takes root: images with a login of another name let it do so."""
    return [] if machine.data["target"].get("user") == "root" else ["sudo", "-n"]


def _new_key(connection: Connection, as_root: list[str]) -> str:
    from gpuops.transport.ssh import keys

    words = _said(connection, [*as_root, "sh", "-c", NEW_KEY, "sh"])
    key = words.partition("key ")[2]
    try:
        return keys.canonical(key)
    except NodeError:
        raise NodeError(
            f"{connection.label} cannot make a host key of its own: {words or 'it said nothing'}",
            "choose an image that has ssh-keygen, as every one with openssh-server does",
        ) from None


def _own_key(machine: Resource, index: int) -> Resource:
    """The machine with the one key that is its own. The old one was known to whoever sees the account, or its env."""
    from gpuops.transport import ssh

    own = machine.data["keys"][-1]
    connection = connect(machine, index)
    try:
        said = _said(connection, [*_as_root(machine), "sh", "-c", SHOW_KEY, "sh"])
    finally:
        connection.close()
    if said != "done":
        raise NodeError(
            f"{machine.name} cannot replace its host key: {said or 'no sshd was found there'}",
            "choose another image: gpuops needs an ordinary OpenSSH server there",
        )
    own_only = _with(machine, {"keys": [own], "throwaway_key": False})
    end = time.monotonic() + STEP_S
    while True:
        connection = connect(own_only, index)
        try:
            _said(connection, ["true"])
            return own_only
        except (ssh.HostKeyChanged, ConnectionLost):  # sshd starts itself again
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
        finally:
            connection.close()


def _standing(connection: Connection, machine: Resource, watch: str, argv: list[str]) -> bool:
    from gpuops.transport import ssh

    # Without the machine's own environment, as a login has it: a key of the provider's may stand there.
    user, home = str(machine.data["target"].get("user") or "root"), ssh.shell_line([str(machine.data["home"])])
    clean = f'env -i HOME={home} "PATH=$PATH" USER={user} LOGNAME={user} LANG=C.UTF-8'
    script = f"#!/bin/sh\nexec {clean} {ssh.shell_line(argv)} </dev/null >/dev/null 2>&1\n"
    return _said(connection, ["sh", "-c", STANDING, "sh", watch], script.encode()) == "on"


def _said(connection: Connection, argv: list[str], question: bytes = b"") -> str:
    """The last line of what a program there says."""
    said = exchange(connection.open(argv), connection.label, question, STEP_S)
    return (said.decode(errors="replace").strip().splitlines() or [""])[-1]
