"""Checks of this computer: the programs, keys and key agent that logins need, and gpuops' own folder."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gpuops.commands.doctor.report import Finding, error, note, warning
from gpuops.core.platform import HERE, System
from gpuops.transport import rsync
from gpuops.transport.ssh import private_keys

KEY_AGENT_TIMEOUT_S = 5.0
"""Seconds that a key agent may take: one whose forwarded socket is stale never answers."""
NO_AGENT_EXIT_CODE = 2
"""Exit code of `ssh-add -L` where no agent answers."""

Which = Callable[[str], str | None]


def computer_findings(
    home: Path,
    env: Mapping[str, str],
    user_home: Path,
    system: System = HERE,
    which: Which = shutil.which,
    *,
    needs_key: bool = True,
) -> Iterator[Finding]:
    """Findings about this computer. `home`: gpuops' own folder; `user_home`: the user's home folder; `needs_key`:
    whether a key of the user's own is needed, as at hosts."""
    yield from _check_programs(system, which)
    held = _list_agent_keys(env, which)
    yield from _check_key_agent(held)
    yield from _check_keys(user_home / ".ssh", held or (), system, needs_key=needs_key)
    yield from _check_own_folder(home)
    if not system.local_nodes:
        yield note(
            "local-nodes",
            "nodes on this computer need Linux or macOS; hosts and rented nodes work from here",
            "use WSL for local nodes",
        )


def _check_programs(system: System, which: Which) -> Iterator[Finding]:
    if which("ssh") is None:
        yield warning(
            "ssh", "there is no ssh here: jump hosts, security keys, gpuops ssh and editors need it", system.install_ssh
        )
    yield from _check_rsync(which("rsync"))
    if which("git") is None:
        yield note("git", "there is no git here: a run does not record its commit", "install git, if you use it")


def _check_rsync(program: str | None) -> Iterator[Finding]:
    whole = "of a large file that changed all is sent"
    if program is None:
        yield note("rsync", f"there is no rsync here: {whole}", "install rsync")
    elif (found := rsync.ask_version(program)) is None:
        yield note("rsync", f"{program} is older than rsync 3.1.3, or another program: {whole}", "install rsync")
    elif found.is_flawed:
        yield warning(
            "rsync-flaw",
            f"rsync {found.version} is not used: a node could overwrite its memory here (CVE-2024-12084)",
            "install your system's updates, or rsync 3.4.0 or later",
        )


def _list_agent_keys(env: Mapping[str, str], which: Which) -> list[bytes] | None:
    """Public keys that the key agent holds; None where SSH_AUTH_SOCK names an agent that does not answer."""
    program = which("ssh-add")
    if program is None or not env.get("SSH_AUTH_SOCK"):
        return []
    try:
        done = subprocess.run(
            [program, "-L"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(env),
            timeout=KEY_AGENT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == NO_AGENT_EXIT_CODE:
        return None
    return [blob for line in done.stdout.splitlines() if (blob := _decode_key(line))]


def _decode_key(line: bytes) -> bytes:
    words = line.split()
    try:
        return base64.b64decode(words[1], validate=True)
    except (IndexError, ValueError):
        return b""


def _check_key_agent(held: list[bytes] | None) -> Iterator[Finding]:
    if held is None:
        yield note(
            "key-agent",
            "SSH_AUTH_SOCK is set, and no key agent answers there",
            'start one: eval "$(ssh-agent)"; or log in again where it was forwarded',
        )


def _check_keys(folder: Path, held: Sequence[bytes], system: System, *, needs_key: bool) -> Iterator[Finding]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        names = []
    except OSError as wrong:
        say = f"{folder} cannot be read ({wrong.strerror}), and so no key in it"
        yield warning("ssh-folder", say, f"sudo chown -R $USER {folder} && chmod 700 {folder}")
        return
    keys = sorted(folder / name for name in names if name.startswith("id_") and not name.endswith(".pub"))
    if needs_key and not keys and not held:
        yield note("key-none", "there is no SSH key here; hosts need one", "ssh-keygen -t ed25519")
    for path in keys:
        yield from _check_key(path, held, system)
    if "config" in names and not system.windows and _file_mode(folder / "config") & 0o022:
        path = folder / "config"
        yield warning("ssh-config", f"{path} can be written by others, and ssh refuses it", f"chmod 600 {path}")


def _file_mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _check_key(path: Path, held: Sequence[bytes], system: System) -> Iterator[Finding]:
    try:
        path.open("rb").close()
    except OSError as wrong:
        yield warning(
            "key-unreadable",
            f"the key {path} cannot be read: {wrong.strerror}",
            f"sudo chown $USER {path}; chmod 600 {path}",
        )
        return
    if not system.windows and _file_mode(path) & 0o077:
        yield warning("key-open", f"the key {path} is open to others, and ssh does not use it", f"chmod 600 {path}")
    if private_keys.is_locked(str(path)) and private_keys.public_blob(str(path)) not in held:
        yield warning(
            "key-locked",
            f"the key {path} has a passphrase, no key agent holds it, and gpuops cannot ask for it",
            f"ssh-add {path}",
        )


def _check_own_folder(home: Path) -> Iterator[Finding]:
    """gpuops records every resource before it creates it, so without this folder it creates nothing."""
    nearest = next(folder for folder in (home, *home.parents) if os.path.exists(folder))
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        yield error("own-folder", f"gpuops' folder {home} cannot be written", "make it writable, or set GPUOPS_HOME")
