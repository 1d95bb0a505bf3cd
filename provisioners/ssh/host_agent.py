"""The agent on one of the user's hosts, whatever version lies there; it is brought again where somebody removed it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.core.errors import NodeError, NodeRefused, Partial, ProviderError, RefusalKind, Rejected
from gpuops.core.models import Resource, ResourceState

if TYPE_CHECKING:
    from gpuops.transport import program_schemas
    from gpuops.transport.connection import Connection

NO_AGENT_ERROR = json.dumps({
    "error": {
        "kind": RefusalKind.NO_AGENT.value,
        "say": "somebody has removed the agent there, and nodes of ours are still there",
        "hint": "end their processes and remove ~/.gpuops-* there by hand",
    }
})  # fmt: skip
FIND_AGENT = f"""no_agent() {{ printf '%s\\n' '{NO_AGENT_ERROR}' >&2; exit 1; }}
agent=
for file in "$2"/*.pyz; do
[ -f "$file" ] || continue
if [ -z "$agent" ] || [ "$file" -nt "$agent" ]; then agent=$file; fi
done
"""
"""The newest agent there, which understands the files of every earlier one."""
LIST_SCRIPT = (
    FIND_AGENT
    + """if [ -z "$agent" ]; then
for node in "$3"/*/n*/node.json; do [ ! -e "$node" ] || no_agent; done
printf '{"nodes": []}'; exit 0; fi
exec "$1" -IS "$agent" nodes --root "$3" --host "$4" """
)
"""Lists nodes. No agent and no node: an empty list."""
END_SCRIPT = (
    FIND_AGENT
    + """if [ ! -d "$3" ]; then printf '{"ended": 0, "left": 0}'; exit 0; fi
[ -n "$agent" ] || no_agent
exec "$1" -IS "$agent" end --node "$3" --host "$4" --token "$5" --remove --root """
)


@dataclass(frozen=True)
class NodeRecord:
    """A node as the agent on its host lists it."""

    mark: str
    """Its name: `gpuops-<owner>-<cluster>-<index>`."""
    folder: str
    state: ResourceState
    gpus: Sequence[str] | None = None
    """None: all of its host."""
    cores_share: float | None = None
    artefact: str | None = None
    token: str | None = None
    on: int | None = None
    """Of a virtual node, the index of the node whose machine it shares."""
    held: str | None = None
    """Of a node in a batch job, the machine that it is on, once it is."""
    within: Sequence[str] | None = None
    """What starts a program in the image file that the node's runs are started in."""


def parse_record(document: Mapping[str, Any]) -> NodeRecord | None:
    """A node of an agent's list; None for an entry that is none of ours."""
    mark, folder, state = (document.get(name) for name in ("mark", "folder", "state"))
    if not (isinstance(mark, str) and isinstance(folder, str) and isinstance(state, str)):
        return None
    more = {name: document.get(name) for name in ("gpus", "cores_share", "artefact", "token", "on", "held", "within")}
    return NodeRecord(mark, folder, ResourceState.parse(state), **more)


class HostAgent:
    """The agent on one host, under `root`, run by `python` there. `cache`: the folder on this computer for the one that
    is brought."""

    def __init__(self, connection: Connection, root: str, python: str, cache: Path) -> None:
        self._connection = connection
        self._root = root
        self._python = python
        self._cache = cache

    def install(self, artefact: Path) -> str:
        """Bring an agent. Returns its path there. Raises NodeError, ConnectionLost."""
        from gpuops.nodes import bootstrap

        return bootstrap.install_agent(self._connection, self._root, artefact, self._python)

    def create_node(self, artefact: Path, folder: str, document: Mapping[str, Any]) -> None:
        """Bring an agent and start a node by it. Raises NodeRefused, NodeError, ConnectionLost."""
        from gpuops.nodes import bootstrap

        bootstrap.start_node(self._connection, self._python, self._root, artefact, folder, document)

    def list_nodes(self, name: str) -> list[NodeRecord]:
        """The nodes of the host that is called `name`. Raises Rejected, NodeRefused, NodeError, ConnectionLost."""
        documents = self._call(LIST_SCRIPT, self._root, name).nodes
        if documents is None:
            raise Rejected(f"what answers on {name} is no agent of gpuops", f"look at what {self._python} is there")
        return [record for document in documents if (record := parse_record(document)) is not None]

    def end_node(self, name: str, folder: str, token: str = "") -> bool:
        """End a node and remove its folder, the shared ones with the last node. A node of another token stays; an empty
        one says nothing. Returns whether a node is left on the host, which is called `name`. Raises Rejected,
        NodeRefused, NodeError, ConnectionLost."""
        left = self._call(END_SCRIPT, folder, name, token).nodes
        return bool(self.list_nodes(name) if left is None else left)  # an older agent does not tell

    def _call(self, script: str, *arguments: str) -> program_schemas.ModeAnswer:
        """What the agent there answers; ours is brought where there is none."""
        from gpuops.nodes import bootstrap

        argv = ["sh", "-c", script, "sh", self._python, f"{self._root}/agent", *arguments]
        try:
            return bootstrap.call_agent_mode(self._connection, argv)
        except NodeRefused as error:
            if error.kind != RefusalKind.NO_AGENT:
                raise
        try:
            artefact, _ = bootstrap.build_agent(self._cache)
        except OSError as error:
            raise NodeError(f"no agent can be brought: {error}", f"see that {self._cache} can be written") from error
        self.install(artefact)
        return bootstrap.call_agent_mode(self._connection, argv)


def join_lists(answers: Sequence[Sequence[Resource] | ProviderError]) -> list[Resource]:
    """What several hosts list, as one answer. Raises the only host's error, or Partial for those of some of several."""
    found = [one for answer in answers if not isinstance(answer, ProviderError) for one in answer]
    failed = [answer for answer in answers if isinstance(answer, ProviderError)]
    if failed and len(answers) == 1:
        raise failed[0]
    if failed:
        hints = dict.fromkeys(error.hint for error in failed if error.hint)
        raise Partial("; ".join(error.message for error in failed), "; ".join(hints), found)
    return found
