"""What a PBS cluster has, what a request may have of it, and why it refuses one. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuops.core.errors import NoCapacity, ProviderError, QuotaExceeded, Rejected, Unknown
from gpuops.core.format import plural
from provisioners.batch.numbers import parse_count
from provisioners.batch.request import JobShape, choose_walltime, format_span
from provisioners.pbs.commands import KILL_DELAY_S, NO_SERVER, members, parse_json, parse_size, parse_span
from provisioners.pbs.options import OUR_PARTS, Wishes

UNUSABLE = frozenset({"down", "offline", "stale", "state-unknown", "unresolvable", "maintenance", "sleep"})
"""States of a node that takes no jobs; it may have several."""
TAKEN = frozenset({"job-exclusive", "resv-exclusive", "busy"})
"""States of one that somebody has as a whole."""


@dataclass(frozen=True)
class Queue:
    name: str
    default_s: float | None = None
    max_s: float | None = None
    kill_delay_s: float = KILL_DELAY_S
    is_open: bool = True
    needs: Mapping[str, str] = field(default_factory=dict)
    """What each of its nodes has, by which sites give nodes to queues: `Qlist` -> `gpu`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """All that PBS tells of it."""


@dataclass(frozen=True)
class Node:
    name: str
    state: str
    gpus: int
    cpus: int
    memory: int
    """Bytes; 0: it is not told."""
    has: Mapping[str, str]
    """All that can be selected by: `gpu_model` -> `v100`."""
    queue: str = ""
    """The only one that has it."""
    used_gpus: int = 0

    @property
    def free_gpus(self) -> int:
        is_open = (UNUSABLE | TAKEN).isdisjoint(re.split(r"[,\s]+", self.state))
        return max(0, self.gpus - self.used_gpus) if is_open else 0

    @property
    def gpu_kind(self) -> str:
        """What tells its GPUs from others', as it is selected by: `gpu_model=v100`; each site has its own names."""
        told = sorted((name, value) for name, value in self.has.items() if name.lower().startswith("gpu"))
        return ", ".join(f"{name}={value}" for name, value in told if value and not value.isdigit())


@dataclass(frozen=True)
class Site:
    queues: Sequence[Queue]
    nodes: Sequence[Node]
    default: str = ""
    server: Mapping[str, Any] = field(default_factory=dict)
    """All that PBS tells of itself."""
    version: str = ""

    def nodes_of(self, queue: Queue) -> list[Node]:
        """As far as that can be told."""
        told = {name for node in self.nodes for name in node.has}
        needs = [(name, value) for name, value in queue.needs.items() if name in told]
        return [
            node
            for node in self.nodes
            if node.queue in ("", queue.name)
            and all(value in node.has.get(name, "").split(",") for name, value in needs)
        ]

    def queue_of(self, wishes: Wishes) -> Queue:
        """The request's queue, or the default one. Raises Rejected."""
        name = wishes.words.get("queue", self.default)
        found = next((queue for queue in self.queues if queue.name == name), None)
        open_ones = ", ".join(queue.name for queue in self.queues if queue.is_open) or "none"
        if found is None:
            what = f"there is no queue {name}" if name else "this cluster has no default queue"
            raise Rejected(what, f"name one with --queue: {open_ones}")
        if not found.is_open:
            raise Rejected(f"queue {name} takes no jobs now", f"name another one with --queue: {open_ones}")
        return found


def parse_site(text: str) -> Site:
    """What commands.SITE printed. Raises ValueError, Unknown."""
    parts = [*text.split("\n===\n"), "", ""][:3]
    queues, servers, nodes = (parse_json(part) if part.strip() else {} for part in parts)
    server = next((facts for _, facts in members(servers, "Server")), {})
    return Site(
        [_parse_queue(name, facts) for name, facts in members(queues, "Queue")],
        [_parse_node(name, facts) for name, facts in members(nodes, "nodes")],
        str(server.get("default_queue", "")),
        server,
        str(queues.get("pbs_version", "")) if isinstance(queues, dict) else "",
    )


def _parse_queue(name: str, facts: Mapping[str, Any]) -> Queue:
    longest = part_of(facts, "resources_max").get("walltime", "")
    usual = part_of(facts, "resources_default").get("walltime", "")
    chunk = part_of(facts, "default_chunk")
    return Queue(
        name,
        parse_span(usual),
        parse_span(longest),
        float(parse_count(str(facts.get("kill_delay", "")), KILL_DELAY_S)),
        str(facts.get("enabled", "True")) == "True",
        {key: value for key, value in chunk.items() if key not in OUR_PARTS and parse_size(value) is None},
        facts,
    )


def _parse_node(name: str, facts: Mapping[str, Any]) -> Node:
    has = part_of(facts, "resources_available")
    return Node(
        name,
        str(facts.get("state", "")),
        parse_count(has.get("ngpus", "")),
        parse_count(has.get("ncpus", ""), 1),
        parse_size(has.get("mem", "")) or 0,
        has,
        str(facts.get("queue", "")),
        parse_count(part_of(facts, "resources_assigned").get("ngpus", "")),
    )


def part_of(facts: Mapping[str, Any], name: str) -> dict[str, str]:
    part = facts.get(name)
    return {key: str(value) for key, value in part.items()} if isinstance(part, dict) else {}


def shape_job(wishes: Wishes, site: Site) -> JobShape:
    """Raises Rejected, NoCapacity."""
    queue = site.queue_of(wishes)
    walltime_s = choose_walltime(wishes.hours, queue.default_s, queue.max_s, f"queue {queue.name}")
    fitting = _fitting_nodes(wishes, site, queue)
    gpus = min((node.gpus for node in fitting if node.gpus), default=0) if wishes.gpus is None else wishes.gpus
    wanted_memory = parse_size(wishes.words.get("mem", "")) or 0
    enough = [
        node
        for node in fitting
        if node.gpus >= gpus
        and node.cpus >= (wishes.cpus or 1)
        and node.memory >= (wanted_memory if node.memory else 0)
    ]
    if site.nodes and len({node.name for node in enough}) < wishes.nodes:
        fit = f"only {plural(len(enough), 'node')} with" if enough else "no node with"
        raise NoCapacity(
            f"queue {queue.name} has {fit} all that is asked for, and the job needs {wishes.nodes}",
            f"the cluster has {describe_nodes(site.nodes)}; ask for less, or something else with --select-extra",
        )
    shares = [node.cpus * gpus // node.gpus if gpus and node.gpus else node.cpus for node in enough]
    cpus = wishes.cpus or max(1, min(shares, default=1))
    # mpiprocs=1: pbsdsh numbers the lines of the node file, of which a queue's default may give a node several.
    chunk = [f"{wishes.nodes}", f"ncpus={cpus}", "mpiprocs=1", *([f"ngpus={gpus}"] if gpus else [])]
    memory = wishes.words.get("mem") or _memory(enough, cpus)
    chunk += [*([f"mem={memory}"] if memory else []), *wishes.extra]
    words = ["-l", f"select={':'.join(chunk)}", "-l", "place=scatter", "-l", f"walltime={format_span(walltime_s)}"]
    words += ["-q", queue.name] if "queue" in wishes.words else []
    words += ["-A", wishes.words["account"]] if "account" in wishes.words else []
    return JobShape(queue.name, wishes.nodes, gpus, "", cpus, walltime_s, [*words, *wishes.raw])


def _memory(nodes: Sequence[Node], cpus: int) -> str:
    """As large a share as that of the cores: what a site gives by itself is often too little for PyTorch."""
    share = min((node.memory * min(cpus, node.cpus) // node.cpus for node in nodes), default=0)
    return f"{share >> 20}mb" if share >> 20 else ""


def _fitting_nodes(wishes: Wishes, site: Site, queue: Queue) -> list[Node]:
    """The queue's nodes that have what was asked for, as far as that can be told."""
    asked = dict(part.split("=", 1) for part in wishes.extra)
    told = {name for node in site.nodes for name in node.has}
    return [
        node
        for node in site.nodes_of(queue)
        if all(value in node.has.get(name, "").split(",") for name, value in asked.items() if name in told)
    ]


def describe_nodes(nodes: Sequence[Node]) -> str:
    """`2 nodes with 4 GPUs (gpu_model=v100), 64 cores, 500 GB (1 free)`."""
    kinds = Counter((node.gpus, node.gpu_kind, node.cpus, node.memory) for node in nodes)
    parts = []
    for (gpus, kind, cpus, memory), count in kinds.items():
        free = sum(node.state == "free" for node in nodes if (node.gpus, node.cpus) == (gpus, cpus))
        gpu = plural(gpus, "GPU") + (f" ({kind})" if kind else "") + ", " if gpus else ""
        parts.append(f"{plural(count, 'node')} with {gpu}{plural(cpus, 'core')}, {memory >> 30} GB ({free} free)")
    return " and ".join(parts) or "no nodes"


def explain_refusal(text: str, site: Site) -> ProviderError:
    """Why qsub refused, by what it said."""
    last = (text.strip().splitlines() or ["it says nothing"])[-1].strip().removeprefix("qsub: ")
    said = text.lower()
    if NO_SERVER.search(text):
        return Unknown(f"the PBS server did not answer: {last}", "try again in a minute")
    if "queue" in said and ("unknown" in said or "denied" in said or "not enabled" in said):
        names = ", ".join(queue.name for queue in site.queues if queue.is_open)
        return Rejected(f"qsub refuses this queue: {last}", f"name another one with --queue: {names or 'none is told'}")
    if "limit" in said or "exceed" in said:
        return QuotaExceeded(f"a limit of the queue or of your account forbids this: {last}", "ask for less, or wait")
    return Rejected(f"qsub refuses: {last}", "see what it means for this cluster, or change the request")
