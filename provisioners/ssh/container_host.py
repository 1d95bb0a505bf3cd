"""Containers on one of the user's hosts: starting, listing and ending them, each by one script there.

`<root>/<cluster>/c<i>` beside the node's folder holds `node` (the spec, the trace of an interrupted creation), `log`
(of the pull and the start), `pid` (of the script that does both, detached: a pull may take longer than a login lives)
and `failed` (which of them). A container carries the same spec as a label: either is found without the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.core.format import one_line
from gpuops.core.models import ResourceState
from gpuops.nodes import bootstrap
from provisioners.ssh.container_probe import image_problem
from provisioners.ssh.container_spec import (
    MARK_LABEL,
    NODE_LABEL,
    OWNER_LABEL,
    TOKEN_LABEL,
    ContainerSpec,
    parse_spec,
    start_words,
)

if TYPE_CHECKING:
    from gpuops.transport.connection import Connection

DONE = "done"
START_SCRIPT = r"""
exec 2>&1
umask 077
folder=$1 home=$2 size=$3 work=$4
shift 4
[ ! -e "$folder/node" ] || { cat >/dev/null; echo "$folder is there already"; exit 0; }
mkdir -p "$folder" "$home" && cat >"$folder/draft" && [ "$(wc -c <"$folder/draft")" -eq "$size" ] &&
    mv -f "$folder/draft" "$folder/node" || {
    rm -f "$folder/draft"
    rmdir "$folder" "$home" "${home%/*}" "${folder%/*}" 2>/dev/null
    exit 0
}
nohup $(command -v setsid) sh -c "$work" sh "$folder" "$@" </dev/null >"$folder/log" 2>&1 &
echo $! >"$folder/pid" && echo done
"""
"""Keeps its input as `$1/node` where it has all of its `$3` bytes, and leaves the script `$4` with the words from `$5`
on behind. Where it cannot, nothing of it stays: no list would tell of it."""
WORK_SCRIPT = r"""
folder=$1 engine=$2 image=$3
shift 3
puller=
trap ': >"$folder/cancel"; [ -z "$puller" ] || kill "$puller"' TERM
if ! "$engine" image inspect "$image" >/dev/null 2>&1; then
    echo "pulling $image"
    "$engine" pull "$image" &
    puller=$!
    wait "$puller" || { echo pull >"$folder/failed"; exit 1; }
    puller=
fi
[ ! -e "$folder/cancel" ] || exit 1
echo "starting $image"
"$@" || { echo run >"$folder/failed"; exit 1; }
"""
"""Pulls the image `$3` unless it is there, with the host's own login at the registry, then starts the container."""
LIST_SCRIPT = rf"""
ids=$("$1" ps --all --quiet --filter "label={OWNER_LABEL}=$3" --filter "label={NODE_LABEL}" 2>&1) || {{
    printf 'error %s\n' "$(printf %s "$ids" | tr '\n' ' ')"; exit 0; }}
for id in $ids; do
    told=$("$1" inspect --type container --format '{{{{.State.Status}}}} {{{{.State.Pid}}}} {{{{index .Config.Labels
        "{NODE_LABEL}"}}}}' "$id" 2>/dev/null) || continue
    status=${{told%% *}} told=${{told#* }}
    [ "$1 $status" != 'podman running' ] || grep -qaF "$2/" "/proc/${{told%% *}}/cmdline" 2>/dev/null || status=dead
    printf 'container %s %s\n' "$status" "${{told#* }}"
done
for folder in "$2"/*/c*; do
    [ -f "$folder/node" ] || continue
    printf 'folder %s\n' "$(cat "$folder/node")"
    pid=$(cat "$folder/pid" 2>/dev/null)
    grep -qaF "$folder" "/proc/${{pid:-0}}/cmdline" 2>/dev/null && echo 'works yes'
    [ -f "$folder/failed" ] && printf 'failed %s\n' "$(cat "$folder/failed")"
    node=${{folder%/c*}}/n${{folder##*/c}}
    [ -f "$node/ended.json" ] && printf 'ended %s\n' "$(cat "$node/ended.json")"
    printf 'log %s\n' "$(grep -av -e '^$' -e "run --help'" "$folder/log" 2>/dev/null | tail -n 1 | cut -c 1-300)"
done
echo {DONE}
"""
"""Lists the containers of the engine `$1` with the owner `$3`, and the folders under the root `$2`. Podman
has no daemon: to it a container runs for ever whose monitor (conmon) was killed, so its first program is looked at."""
END_SCRIPT = rf"""
exec 2>&1
engine=$1 folder=$2 node=$3 mark=$4 token=$5
pid=$(cat "$folder/pid" 2>/dev/null)
tries=0
while grep -qaF "$folder" "/proc/${{pid:-0}}/cmdline" 2>/dev/null && [ "$tries" -lt 100 ]; do
    kill -TERM "$pid" 2>/dev/null
    sleep 0.1
    tries=$((tries + 1))
done
found() {{ "$engine" ps --all --quiet --filter "label={MARK_LABEL}=$mark" --filter "label={TOKEN_LABEL}=$token"; }}
ids=$(found) || {{ printf '%s\n' "$ids"; exit 0; }}
tries=0
while [ -n "$ids" ] && [ "$tries" -lt 120 ]; do
    case $tries in
        *[05]) "$engine" kill --signal TERM $ids || "$engine" rm --force $ids ;; # rm: of one that does not run
        1[01]?) "$engine" rm --force $ids ;;
    esac >/dev/null 2>&1
    sleep 0.2
    ids=$(found)
    tries=$((tries + 1))
done
[ -z "$ids" ] || {{ echo "the container $mark does not end"; exit 0; }}
cd /
for other in "${{node%/*}}"/n*/node.json; do
    grep -qsE "\"on\": ${{node##*/n}}[,}}]" "$other" && set -- "$@" "${{other%/*}}"
done
shift 5
for gone in "$node" "$@" "$folder"; do
    grep -qsF " $gone/" /proc/self/mountinfo && {{ echo "something is mounted in $gone"; exit 0; }}
    rm -rf "$gone" || exit 0
done
rmdir "${{node%/*}}" 2>/dev/null
echo {DONE}
"""
"""Ends a container, by its label, and what starts it; removes the node's folder, those of virtual nodes on it, and last
the folder that tells of it. Repeating it is harmless."""


@dataclass(frozen=True)
class FoundNode:
    """A node in a container, as its host shows it."""

    spec: ContainerSpec
    state: ResourceState
    phase: str = ""
    hopeless: str = ""
    why_ended: str = ""


class ContainerHost:
    """The containers of one engine on one host."""

    def __init__(self, connection: Connection, engine: str, root: str) -> None:
        self._connection = connection
        self._engine = engine
        self._root = root

    def start(self, spec: ContainerSpec) -> None:
        """Begin to pull the image and to start the container; `found` tells what came of it. Raises NodeError."""
        work = [spec.engine, spec.image, *start_words(spec, bootstrap.PYTHONS)]
        document = spec.document().encode()
        argv = ["sh", "-c", START_SCRIPT, "sh", spec.folder, spec.home, str(len(document)), WORK_SCRIPT, *work]
        self._expect_done(argv, f"{spec.mark} cannot be started", document)

    def found(self, owner: str) -> list[FoundNode]:
        """Raises NodeError, ConnectionLost."""
        argv = ["sh", "-c", LIST_SCRIPT, "sh", self._engine, self._root, owner]
        return parse_list(bootstrap.run_step(self._connection, argv).decode(errors="replace"), self._connection.label)

    def end(self, spec: ContainerSpec) -> None:
        """End a node with everything of it. Raises NodeError, ConnectionLost."""
        argv = ["sh", "-c", END_SCRIPT, "sh", spec.engine, spec.folder, spec.node, spec.mark, spec.token]
        self._expect_done(argv, f"{spec.mark} cannot be ended")

    def _expect_done(self, argv: list[str], what: str, question: bytes = b"") -> None:
        said = bootstrap.run_step(self._connection, argv, question)
        last = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        if last != DONE:
            raise NodeError(f"{what} on {self._connection.label}: {one_line(last)[:300]}", f"see: {self._engine} ps -a")


def parse_list(text: str, label: str) -> list[FoundNode]:
    """The nodes of LIST_SCRIPT's answer. Raises NodeError where the engine refused, ConnectionLost for half of one."""
    lines = [line.partition(" ")[::2] for line in text.splitlines()]
    if error := next((rest for word, rest in lines if word == "error"), ""):
        raise NodeError(f"containers on {label} cannot be listed: {one_line(error)[:300]}", "see that it runs there")
    if not lines or lines[-1] != (DONE, ""):
        raise ConnectionLost(f"{label} did not list its containers to the end", "try again")
    containers: dict[tuple[str, str], tuple[ContainerSpec, str]] = {}
    for word, rest in lines:
        status, _, label_text = rest.partition(" ")
        if word == "container" and (spec := _read_spec(label_text)):
            containers[spec.mark, spec.token] = spec, status
    found: list[FoundNode] = []
    for spec, facts in _folders(lines):
        _, status = containers.pop((spec.mark, spec.token), (spec, ""))
        found.append(_judge(spec, status, facts, label))
    return found + [_judge(spec, status, {}, label) for spec, status in containers.values()]


def _folders(lines: list[tuple[str, str]]) -> Iterator[tuple[ContainerSpec, Mapping[str, str]]]:
    current: tuple[ContainerSpec, dict[str, str]] | None = None
    for word, rest in [*lines, ("folder", "")]:
        if word == "folder":
            if current:
                yield current
            spec = _read_spec(rest)
            current = (spec, {}) if spec else None
        elif current and word in ("works", "failed", "ended", "log"):
            current[1][word] = rest


def _read_spec(text: str) -> ContainerSpec | None:
    try:
        return parse_spec(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _judge(spec: ContainerSpec, status: str, facts: Mapping[str, str], host: str) -> FoundNode:
    """What a node is at, by its container's status (empty: there is none) and its folder."""
    log = one_line(facts.get("log", ""))
    if failed := facts.get("failed"):
        return FoundNode(spec, ResourceState.STARTING, hopeless=_explain(spec, failed, log, host))
    if status in ("running", "paused"):
        return FoundNode(spec, ResourceState.RUNNING)
    if facts.get("works"):
        phase = (
            log if log.startswith(("pulling", "starting")) else f"pulling {spec.image}: {log}" if log else "starting"
        )
        return FoundNode(spec, ResourceState.STARTING, phase=phase)
    try:
        why = str(json.loads(facts["ended"])["why"])
    except (ValueError, TypeError, KeyError):
        why = "its container has ended"
    return FoundNode(spec, ResourceState.ENDED, why_ended=one_line(why)[:300])


def _explain(spec: ContainerSpec, failed: str, log: str, host: str) -> str:
    if failed == "python":
        return f"the image {spec.image} has no Python 3.8 or later for gpuops' agent: add python3 to it"
    if failed == "pull":
        problem = image_problem(host, spec.engine, spec.image, log)
        return f"{problem.say}; {problem.hint}" if problem else f"{spec.image} cannot be pulled: {log}"
    if "already in use" in log:
        return f"a container named {spec.mark} is there already: {spec.engine} rm -f {spec.mark}, if it is a stray"
    if "could not select device driver" in log or "unresolvable CDI" in log:
        return f"{spec.engine} cannot hand on the GPUs: install nvidia-container-toolkit there ({log})"
    return f"{spec.engine} does not start {spec.image}: {log}"
