"""A rented machine becomes a node: it gets a host key of its own, the agent, and a watchdog.

A provider gives a machine that can be logged in to. If its first host key travelled through the provider, the key is
replaced in the first session that was verified with it, so that its private half is worthless from then on.
`prepare_handover` returns the new key, for the ledger to record; only then `complete_handover` has the machine show it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from gpuops.agent.machine_resources import boot_id
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.core.models import Resource
from gpuops.core.polling import Clock, Poller
from gpuops.core.provider import Provisioner, is_rented
from gpuops.ledger.store import ClusterRow
from gpuops.nodes import bootstrap
from gpuops.transport.connect import connect
from gpuops.transport.connection import Connection

RESTART_TIMEOUT_S = 55.0
"""How long sshd may take to restart with its new key."""
RESTART_POLL_INTERVAL_S = 0.5

MAKE_KEY_SCRIPT = r"""
exec 2>&1
umask 077
here="$(cat /proc/sys/kernel/random/boot_id 2>/dev/null) $(stat -c %d:%i /etc/ssh 2>/dev/null)"
[ "$1" = "$here" ] && printf 'this computer\n' && exit 0
cd /etc/ssh || exit 0
[ -f gpuops_new_key ] || { rm -f gpuops_new_draft gpuops_new_draft.pub
    ssh-keygen -q -t ed25519 -N '' -C '' -f gpuops_new_draft </dev/null &&
    mv -f gpuops_new_draft.pub gpuops_new_key.pub && mv -f gpuops_new_draft gpuops_new_key; }
printf 'key %s\n' "$(cat gpuops_new_key.pub)"
exit 0
"""
"""Makes a key beside the one in use, unless there is one, and prints its public half. `$1`: `identify_ssh_folder()` of
the computer that asks; where that is this very machine, nothing is made."""
SWITCH_KEY_SCRIPT = r"""
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
"""Puts the new key in the place of the old one and has the server, the uppermost sshd above this shell, read it."""
OF_THE_PRESENT = frozenset({"queued", "phase", "hopeless", "stopped", "reclaimed", "by", "why_ended"})
"""What `Resource.data` says of a machine as it is now: a description that omits it takes it back."""
BOOT_WATCH_SCRIPT = r"""
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
"""Prints `on` where the machine's own watchdog lives, as a process or by its beat, and gives it the program from stdin
that restarts the node."""


def needs_handover(machine: Resource) -> bool:
    """Whether a machine can be logged in to and is no node yet."""
    return machine.data.get("connection") == "ssh" and bool(machine.data.get("target")) and not is_node(machine)


def is_node(machine: Resource) -> bool:
    return bool(machine.data.get("artefact"))


def merge_description(known: Resource, described: Resource) -> Resource:
    """A provider's present description of a machine, completed by what the provider cannot know: keys, paths."""
    lasting = {name: value for name, value in known.data.items() if name not in OF_THE_PRESENT}
    data: dict[str, Any] = {**lasting, **described.data}
    if known.data.get("keys") and data.get("target"):
        data["target"] = {**data["target"], "host_keys": known.data["keys"]}
    return dataclasses.replace(described, data=data)


def prepare_handover(machine: Resource, index: int) -> Resource:
    """Find out a machine's home and Python, and make the host key that will replace a throwaway one. Idempotent.

    Raises NodeError, ConnectionLost.
    """
    with closing(connect(machine, index)) as connection:
        probe = bootstrap.probe_machine(connection)
        facts = {"home": probe.home, "python": probe.python}
        if machine.data.get("throwaway_key"):
            first, key = list(machine.data["target"]["host_keys"]), _make_host_key(connection, _root_prefix(machine))
            return _add_data(machine, {**facts, "keys": [*first, *([key] if key not in first else [])]})
        return _add_data(machine, facts)


def complete_handover(
    ctx: Context, provisioner: Provisioner, row: ClusterRow, agent: Path, index: int, machine: Resource
) -> Resource:
    """Make a machine, after `prepare_handover`, a node whose agent answers. Raises NodeError, ConnectionLost."""
    data = machine.data
    if data.get("throwaway_key"):
        machine = _switch_host_key(ctx.clock, machine, index)
    root = str(data.get("root") or f"{data['home']}/.gpuops-{ctx.owner}")
    token = machine.token or f"{row.token}-{index}"
    machine = _add_data(machine, {"root": root, "artefact": agent.stem, "token": token})
    with closing(connect(machine, index)) as connection:
        folder = f"{root}/{row.name}/n{index}"
        watch = str(data.get("boot_watch") or "")
        rented = is_rented(provisioner)
        node = {
            "cluster": row.name,
            "owner": ctx.owner,
            "index": index,
            "mark": machine.name,
            "token": token,
            "end": provisioner.self_destruct(machine),
            "gpus": data.get("gpus"),
            "cores_share": data.get("cores_share"),
            "artefact": agent.stem,
            "contained": bool(data.get("inside")),
            "boot_watch": watch or None,
            "notices": data.get("notices"),
            "scratch": data.get("scratch") if rented else None,
            "rented": rented,
        }
        boot_in = max(1.0, row.boot_deadline - ctx.clock.now())
        document = {"node": node, "lease": {"boot_in": boot_in}}
        bootstrap.start_node(connection, str(data["python"]), root, agent, folder, document)
        if watch:
            path = bootstrap.agent_path(root, agent)
            argv = [str(data["python"]), "-I", path, "init", "--node", folder, "--revive"]
            machine = _add_data(machine, {"watched": _register_with_boot_watch(connection, machine, watch, argv)})
        return machine


def recover_node(machine: Resource, index: int, cluster: str, owner: str) -> Resource:
    """Complete a machine that is a node of which the ledger has no record, from its disk and from this computer's.

    The key that it shows is in the cluster's known_hosts file here. Raises NodeError, ConnectionLost.
    """
    from gpuops.transport import ssh, validation

    trusted = Path(machine.data["ssh_folder"]) / f"{cluster}.known_hosts"
    if keys := ssh.known_keys(ssh.alias(cluster, index), 22, [str(trusted)]):
        machine = _add_data(machine, {"keys": list(keys), "throwaway_key": False})
    connection = connect(machine, index)
    try:
        probe = bootstrap.probe_machine(connection)
        root = str(machine.data.get("root") or f"{probe.home}/.gpuops-{owner}")
        answer = _read_last_line(
            connection, ["sh", "-c", 'cat "$1" 2>/dev/null; exit 0', "sh", f"{root}/{cluster}/n{index}/node.json"]
        )
        settings = validation.parse_json(answer.encode() or b"{}")
        if not (isinstance(settings, dict) and isinstance(settings.get("artefact"), str) and settings["artefact"]):
            raise NodeError(f"{machine.name} never became a node", "there is nothing on it to take back: gpuops reap")
        facts = {"home": probe.home, "python": probe.python, "root": root, "artefact": settings["artefact"]}
        return _add_data(machine, facts)
    except ValueError as error:
        raise NodeError(f"what {machine.name} says of itself cannot be read", "end it: gpuops reap") from error
    finally:
        connection.close()


def _add_data(machine: Resource, data: Mapping[str, Any]) -> Resource:
    """The machine with `data` added; new `keys` are the host keys that are accepted from now on."""
    merged = {**machine.data, **data}
    if "keys" in data:
        merged["target"] = {**merged["target"], "host_keys": data["keys"]}
    return dataclasses.replace(machine, data=merged)


def _root_prefix(machine: Resource) -> list[str]:
    """What to put before a command that needs root. Images with a login of another name allow sudo."""
    return [] if machine.data["target"].get("user") == "root" else ["sudo", "-n"]


def identify_ssh_folder(folder: Path = Path("/etc/ssh")) -> str:
    """What tells this computer's folder of host keys from any other machine's, containers on this one included, as
    `MAKE_KEY_SCRIPT` finds it; empty where it cannot be told."""
    try:
        status = folder.stat()
    except OSError:
        return ""
    return f"{boot} {status.st_dev}:{status.st_ino}" if (boot := boot_id()) else ""


def _make_host_key(connection: Connection, as_root: list[str]) -> str:
    from gpuops.transport.ssh import host_keys

    answer = _read_last_line(connection, [*as_root, "sh", "-c", MAKE_KEY_SCRIPT, "sh", identify_ssh_folder()])
    if answer == "this computer":
        raise NodeError(
            f"{connection.label} is this computer itself: its host key is not replaced, and nothing was changed",
            "its provider must give each machine an /etc/ssh of its own, or connect to it as a process",
        )
    key = answer.partition("key ")[2]
    try:
        return host_keys.canonical(key)
    except NodeError:
        raise NodeError(
            f"{connection.label} cannot make a host key of its own: {answer or 'it said nothing'}",
            "choose an image that has ssh-keygen, as every one with openssh-server does",
        ) from None


def _switch_host_key(clock: Clock, machine: Resource, index: int) -> Resource:
    """Replace the throwaway host key, which anybody can read who sees the account or its environment.

    Returns the machine with its own key alone, once it was logged in to with that.
    """
    from gpuops.transport import ssh

    own = machine.data["keys"][-1]
    with closing(connect(machine, index)) as connection:
        answer = _read_last_line(connection, [*_root_prefix(machine), "sh", "-c", SWITCH_KEY_SCRIPT, "sh"])
    if answer != "done":
        raise NodeError(
            f"{machine.name} cannot replace its host key: {answer or 'no sshd was found there'}",
            "choose another image: gpuops needs an ordinary OpenSSH server there",
        )
    own_only = _add_data(machine, {"keys": [own], "throwaway_key": False})
    for attempt in Poller.every(clock, RESTART_POLL_INTERVAL_S, clock.monotonic() + RESTART_TIMEOUT_S):
        connection = connect(own_only, index)
        try:
            _read_last_line(connection, ["true"])
            break
        except (ssh.HostKeyChanged, ConnectionLost):  # sshd is restarting
            if attempt.is_last:
                raise
        finally:
            connection.close()
    return own_only


def _register_with_boot_watch(connection: Connection, machine: Resource, watch: str, argv: list[str]) -> bool:
    from gpuops.transport import ssh

    # Without the machine's own environment, as a login has it: a key of the provider's may stand there.
    user, home = str(machine.data["target"].get("user") or "root"), ssh.shell_line([str(machine.data["home"])])
    clean = f'env -i HOME={home} "PATH=$PATH" USER={user} LOGNAME={user} LANG=C.UTF-8'
    script = f"#!/bin/sh\nexec {clean} {ssh.shell_line(argv)} </dev/null >/dev/null 2>&1\n"
    return _read_last_line(connection, ["sh", "-c", BOOT_WATCH_SCRIPT, "sh", watch], script.encode()) == "on"


def _read_last_line(connection: Connection, argv: list[str], question: bytes = b"") -> str:
    """The last line of what a program on the machine prints."""
    output = bootstrap.run_step(connection, argv, question)
    return (output.decode(errors="replace").strip().splitlines() or [""])[-1]
