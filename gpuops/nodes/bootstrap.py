"""The agent as one file: a zip archive that Python runs, named by its content."""

from __future__ import annotations

import gzip
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
from gpuops.transport.connection import MAX_EARLY_BYTES, Connection

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
PACK_LEVEL = 6
"""gzip's: 616 kB become 177 in 20 ms."""
NOT_PUT = b"not put there"
"""What INSTALL_SCRIPT says first where it cannot."""
NO_AGENT_FILE = "can't open file"
"""What Python says of an agent's file that somebody has removed."""
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
umask 077
folder=$1 place=$1/$2 size=$3 python=$4
shift 4
IFS= read -r document
is_there() { [ -f "$place" ] && [ "$(wc -c <"$place")" -eq "$size" ]; }
unpack() {
    if command -v gzip >/dev/null 2>&1; then gzip -dc
    elif [ -n "$python" ]; then "$python" -IS -c "$by_python"
    else echo 'neither gzip nor a Python is there to unpack it' >&2; return 1; fi
}
by_python='import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read(), 31))'
put() {
    [ -d "$folder" ] || mkdir -p "$folder" || return
    draft=$(mktemp "$place.XXXXXX") || return
    unpack >"$draft" && [ "$(wc -c <"$draft")" -eq "$size" ] && mv -f "$draft" "$place" && return
    rm -f "$draft"
    return 1
}
if ! is_there; then
    said=$(put 2>&1) || { cat >/dev/null; printf 'not put there\n%s\n' "$said"; exit 0; }
fi
cat >/dev/null
[ $# -gt 0 ] || { printf 'there\n'; exit 0; }
printf '%s\n' "$document" | "$@"
"""
"""Keeps its packed input, but for the first line, as the file `$2` in the folder `$1`, if it has all of its `$3` bytes:
a connection that is cut ends it. Not where that is there with all of them: a machine that lost its power may have kept
the name alone. Then it starts the rest of its words, which get that line. The shell reads a line byte by byte and
leaves the rest to whoever comes next."""
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


def run_step(connection: Connection, argv: Sequence[str], question: bytes = b"", *, waits: bool = False) -> bytes:
    """What a program on a machine prints, given `question` as its input: at once, or (`waits`) only when it is known to
    run, a round trip later. Raises NodeError, ConnectionLost."""
    early = question if len(question) <= MAX_EARLY_BYTES and not waits else b""
    return exchange(connection.open(argv, early), connection.label, question[len(early) :], STEP_SILENCE_LIMIT_S)


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


def agent_path(root: str, artefact: Path) -> str:
    """Where an agent lies on a machine."""
    return str(PurePosixPath(root) / "agent" / artefact.name)


def install_agent(connection: Connection, root: str, artefact: Path, python: str = "") -> str:
    """Copy the agent to `<root>/agent/`, unless it is there. Returns its path. `python`: what unpacks it where there is
    no gzip. Raises NodeError, ConnectionLost."""
    said = _bring(connection, root, artefact, python)
    last = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    if last != "there":
        raise _not_put(connection.label, root, last)
    return agent_path(root, artefact)


def _bring(
    connection: Connection, root: str, artefact: Path, python: str, then: Sequence[str] = (), document: str = ""
) -> bytes:
    """What INSTALL_SCRIPT prints, or what it starts `then`."""
    content = artefact.read_bytes()
    folder = str(PurePosixPath(root) / "agent")
    argv = ["sh", "-c", INSTALL_SCRIPT, "sh", folder, artefact.name, str(len(content)), python, *then]
    question = document.encode() + b"\n" + gzip.compress(content, PACK_LEVEL, mtime=0)
    said = run_step(connection, argv, question)
    if said.startswith(NOT_PUT):  # perhaps since a start-up file of the shell there has read some of it
        said = run_step(connection, argv, question, waits=True)
    return said


def _not_put(label: str, root: str, why: str) -> NodeError:
    return NodeError(f"the agent cannot be put on {label}: {why}", f"look at {PurePosixPath(root) / 'agent'} there")


def remove_agent(connection: Connection, root: str) -> None:
    """Remove the agent from a machine on which no node was created. Raises ConnectionLost."""
    run_step(connection, ["sh", "-c", CLEANUP_SCRIPT, "sh", root])


def start_node(
    connection: Connection, python: str, root: str, artefact: Path, folder: str, document: Mapping[str, Any]
) -> None:
    """Bring the agent and start a node's watchdog and agent, in one step: each one costs round trips. Raises
    NodeRefused with the agent's own words, NodeError, ConnectionLost."""
    argv = _init_argv(python, agent_path(root, artefact), folder)

    def start() -> bytes:
        return _bring(connection, root, artefact, python, argv, json.dumps(document))

    try:
        said = start()
    except ConnectionLost as error:
        if NO_AGENT_FILE not in error.message:
            raise
        said = start()  # another command's end of the last node there took it away in between
    if said.startswith(NOT_PUT):
        raise _not_put(connection.label, root, said.decode(errors="replace").strip().splitlines()[-1])
    _parse_answer(connection.label, said)


def init(connection: Connection, python: str, agent: str, folder: str, document: Mapping[str, Any]) -> None:
    """Start a node's watchdog and agent by an agent that is there. Raises NodeRefused with the agent's own words,
    ConnectionLost."""
    call_agent_mode(connection, _init_argv(python, agent, folder), json.dumps(document).encode())


def _init_argv(python: str, agent: str, folder: str) -> list[str]:
    return [python, "-IS", agent, "init", "--node", folder]


def revive(connection: Connection, python: str, agent: str, folder: str) -> None:
    """Start both again after a reboot, or after they were killed. Raises NodeRefused, ConnectionLost."""
    call_agent_mode(connection, [*_init_argv(python, agent, folder), "--revive"])


def call_agent_mode(connection: Connection, argv: Sequence[str], question: bytes = b"") -> program_schemas.ModeAnswer:
    """One of the agent's modes that answers with one line of JSON. Raises NodeRefused, ConnectionLost."""
    return _parse_answer(connection.label, run_step(connection, argv, question))


def _parse_answer(label: str, said: bytes) -> program_schemas.ModeAnswer:
    from gpuops.transport import program_schemas, validation

    try:
        answer: program_schemas.ModeAnswer = validation.convert(validation.parse_json(said), program_schemas.ModeAnswer)
    except ValueError as error:
        last = (said.decode(errors="replace").strip().splitlines() or ["nothing"])[-1][:200]
        raise ConnectionLost(f"{label} gave no answer but '{last}'", "try again") from error
    return answer
