"""The agent as one file: a zip archive that Python runs, named by its content."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.core.files import write_atomic
from gpuops.transport.bulk_transfer import exchange
from gpuops.transport.connection import Connection

if TYPE_CHECKING:
    from gpuops.transport import program_schemas


EPOCH = (1980, 1, 1, 0, 0, 0)
"""A fixed time for all members: the same sources give the same bytes."""


def build_agent(cache: Path) -> tuple[Path, str]:
    """The artefact in the folder `cache` and the first 12 hex digits of its SHA-256.

    Written unless the file exists with the same bytes: it runs here and on every node.
    """
    content = pack_zip(agent_sources())
    sha = _hash(content)
    path = cache / f"{sha}.pyz"
    if not path.is_file() or path.read_bytes() != content:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, content)
    return path, sha


def is_own_agent(artefact: str) -> bool:
    """Whether an artefact of this name is what `build_agent` builds, and not another version's."""
    return artefact == _hash(pack_zip(agent_sources()))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def agent_sources() -> Iterator[tuple[str, bytes]]:
    """(path in the archive, content) of each member, sorted."""
    agent = resources.files("gpuops") / "agent"
    yield "__main__.py", _unix((agent / "__main__.py").read_bytes())
    yield "gpuops/__init__.py", b""
    for path, content in sorted(_modules(agent, "gpuops/agent")):
        if path != "gpuops/agent/__main__.py":
            yield path, content


def _modules(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    """Every Python file under `folder`, as (path, content)."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _modules(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(".py"):
            yield f"{path}/{entry.name}", _unix(entry.read_bytes())


def _unix(source: bytes) -> bytes:
    """With Unix line ends: git on Windows may have changed them."""
    return source.replace(b"\r\n", b"\n")


def pack_zip(members: Iterator[tuple[str, bytes]]) -> bytes:
    """A zip archive, stored: compressors differ from machine to machine, and Python reads it faster."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return buffer.getvalue()


PYTHONS = (
    *("python3", "/usr/bin/python3", "/usr/local/bin/python3", "/opt/pytorch/bin/python3", "/opt/conda/bin/python3"),
    *(f"python3.{minor}" for minor in range(14, 7, -1)),
)
"""Where a Python for the agent is searched, in this order; the Python that trains is chosen later."""
STEP_SILENCE_LIMIT_S = 55.0
"""Time without output after which a step fails."""

PROBE_SCRIPT = r"""
home=${HOME:-$(cd && pwd)}
printf 'home %s\n' "$home"
look='
import os, sys
print("%d %d" % sys.version_info[:2])
print("python " + sys.executable)
home = sys.argv[1]
if not os.access(home, os.W_OK):
    print("unwritable " + home)
try:
    disk = os.statvfs(home)
    print("free_kb %d" % (disk.f_bavail * disk.f_frsize // 1024))
except OSError:
    pass
try:
    print("machine " + open("/proc/sys/kernel/random/boot_id").read().strip() + " " + os.readlink("/proc/self/ns/net"))
except OSError:
    pass
'
for name in "$@"; do
    said=$("$name" -ES -c "$look" "$home" 2>/dev/null) || continue
    case $said in
        "3 "[89] | "3 "[89][!0-9]* | "3 "[1-9][0-9] | "3 "[1-9][0-9][!0-9]*) printf '%s\n' "$said"; break ;;
        *) printf 'old %s is Python %s\n' "$(command -v "$name")" "$(printf '%s\n' "$said" | head -n 1 | tr ' ' .)" ;;
    esac
done
command -v nvidia-smi >/dev/null 2>&1 && printf 'gpus %s\n' "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')"
exit 0
"""
"""The Python that is found looks at everything else: a program for each look would be ten of them on every host."""
INSTALL_SCRIPT = r"""
exec 2>&1
umask 077
draft=
if [ -f "$1/$2" ] && [ "$(wc -c <"$1/$2")" -eq "$3" ]; then cat >/dev/null; printf 'there\n'; exit 0; fi
{ [ -d "$1" ] || mkdir -p "$1"; } &&
    draft=$(mktemp "$1/$2.XXXXXX") && cat >"$draft" && [ "$(wc -c <"$draft")" -eq "$3" ] &&
    mv -f "$draft" "$1/$2" && { printf 'there\n'; exit 0; }
cat >/dev/null
[ -z "$draft" ] || rm -f "$draft"
exit 0
"""
"""Keeps its input as the file `$2` in the folder `$1`, if it has all of its `$3` bytes: a connection that is cut ends
it. Not where that is there with all of them: a machine that lost its power may have kept the name alone."""
CLEANUP_SCRIPT = r"""
holds_no_node() {
    [ -d "$1" ] && [ -z "$(ls -A "$1" | grep -vx -e agent -e env -e data)" ] || return 1
    for node in "$1"/*/n*/node.json; do [ ! -e "$node" ] || return 1; done
    ! grep -qsF " $1/" /proc/self/mountinfo
}
cd /
if holds_no_node "$1" && mv "$1" "$1.gone-$$"; then
    holds_no_node "$1.gone-$$" || [ -e "$1" ] || mv "$1.gone-$$" "$1"
fi
for folder in "$1".gone-*; do holds_no_node "$folder" && rm -rf "$folder"; done
exit 0
"""
"""Removes a root without nodes, as the agent's `end --root` does: deleted under another name, with what others left."""
MAX_DIGITS = 18
MIN_FREE_DISK_KB = 50_000
"""With less free disk (kB) the agent is not installed on a machine."""


@dataclass(frozen=True)
class MachineProbe:
    """What PROBE_SCRIPT found on a machine."""

    home: str
    python: str
    """The interpreter that is to run the agent."""
    gpus: int = 0
    machine: str = ""
    """Equal for two names of one machine; empty where it is unknown."""


def run_step(connection: Connection, argv: Sequence[str], question: bytes = b"") -> bytes:
    """What a program on a machine prints, given `question` as its input. Raises NodeError, ConnectionLost."""
    return exchange(connection.open(argv), connection.label, question, STEP_SILENCE_LIMIT_S)


def probe_machine(connection: Connection, *, needs_python: bool = True) -> MachineProbe:
    """Probe a machine. Raises NodeError where it cannot become a node, ConnectionLost. `needs_python`: whether the
    agent is to run on it, and not in a container there."""
    said = run_step(connection, ["sh", "-c", PROBE_SCRIPT, "sh", *PYTHONS])
    return parse_probe(said.decode(errors="replace"), connection.label, needs_python=needs_python)


def parse_probe(text: str, label: str, *, needs_python: bool = True) -> MachineProbe:
    """Parse what PROBE_SCRIPT printed. Raises NodeError."""
    said: dict[str, str] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        said.setdefault(word, rest.strip())
    if needs_python and not said.get("python"):
        old = said.get("old")
        raise NodeError(
            f"{label} has no Python 3.8 or later" + (f" ({old})" if old else ""), f"install python3 on {label}"
        )
    if "unwritable" in said:
        raise NodeError(f"the home folder {said['unwritable']} of {label} cannot be written", "log in as another user")
    free_kb = _count(said.get("free_kb", ""))
    if free_kb is not None and free_kb < MIN_FREE_DISK_KB:
        free, least = free_kb // 1000, MIN_FREE_DISK_KB // 1000
        say = f"{label} has {free} MB of free disk, at least {least} MB are needed"
        raise NodeError(say, f"free some space under {said['home']} there")
    return MachineProbe(
        said.get("home", ""), said.get("python", ""), _count(said.get("gpus", "")) or 0, said.get("machine", "")
    )


def _count(text: str) -> int | None:
    """Parse a count; None where it is no number, or a longer one than MAX_DIGITS."""
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def install_agent(connection: Connection, root: str, artefact: Path) -> str:
    """Copy the agent to `<root>/agent/`, unless it is there. Returns its path. Raises NodeError, ConnectionLost."""
    folder = str(PurePosixPath(root) / "agent")
    content = artefact.read_bytes()
    argv = ["sh", "-c", INSTALL_SCRIPT, "sh", folder, artefact.name, str(len(content))]
    said = run_step(connection, argv, content)
    last = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    if last != "there":
        raise NodeError(f"the agent cannot be put on {connection.label}: {last}", f"look at {folder} there")
    return str(PurePosixPath(folder) / artefact.name)


def is_installed(connection: Connection, agent: str) -> bool:
    """Whether an agent is still where `install_agent` put it. Raises ConnectionLost."""
    argv = ["sh", "-c", '[ ! -f "$1" ] || echo there', "sh", agent]
    return bool(run_step(connection, argv).strip())


def remove_agent(connection: Connection, root: str) -> None:
    """Remove the agent from a machine on which no node was created. Raises ConnectionLost."""
    run_step(connection, ["sh", "-c", CLEANUP_SCRIPT, "sh", root])


def init(connection: Connection, python: str, agent: str, folder: str, document: Mapping[str, Any]) -> None:
    """Start a node's watchdog and agent. Raises NodeRefused with the agent's own words, ConnectionLost."""
    call_agent_mode(connection, [python, "-IS", agent, "init", "--node", folder], json.dumps(document).encode())


def revive(connection: Connection, python: str, agent: str, folder: str) -> None:
    """Start both again after a reboot, or after they were killed. Raises NodeRefused, ConnectionLost."""
    call_agent_mode(connection, [python, "-IS", agent, "init", "--node", folder, "--revive"])


def call_agent_mode(connection: Connection, argv: Sequence[str], question: bytes = b"") -> program_schemas.ModeAnswer:
    """One of the agent's modes that answers with one line of JSON. Raises NodeRefused, ConnectionLost."""
    from gpuops.transport import program_schemas, validation

    said = run_step(connection, argv, question)
    try:
        answer: program_schemas.ModeAnswer = validation.convert(validation.parse_json(said), program_schemas.ModeAnswer)
    except ValueError as error:
        last = (said.decode(errors="replace").strip().splitlines() or ["nothing"])[-1][:200]
        raise ConnectionLost(f"{connection.label} gave no answer but '{last}'", "try again") from error
    return answer
