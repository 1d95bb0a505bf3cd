"""The nodes on one machine, virtual ones (`data["on"]`) among them, and which of its GPUs each has."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.errors import Rejected, UsageError
from gpuops.core.format import listed, plural
from gpuops.core.models import Resource
from gpuops.core.run_models import RunRequest

MOST_NODES = 128
MOST_RANKS = 1024
"""Each is a process with a torch of its own: long before so many, a machine is out of memory."""


def divide(gpus: Sequence[str], nodes: int, wanted: int | None, where: str) -> tuple[list[list[str]], str]:
    """Each node's GPUs on one machine, which sentences call `where`, and a sentence where the user should know.

    Without GPUs every share is empty. `wanted` GPUs per node, or all, divided evenly.
    Raises Rejected when GPUs exist and are wanted in a number that is not there, and for more than a machine can bear.
    """
    ranks = nodes * (wanted or 1)
    if nodes > MOST_NODES or ranks > MOST_RANKS:
        what, most = (f"{nodes} nodes", MOST_NODES) if nodes > MOST_NODES else (f"{ranks} ranks", MOST_RANKS)
        raise Rejected(f"{what} are more than {where} can bear, at most {most}", "ask for fewer --nodes or --gpus")
    if not gpus:
        return [[] for _ in range(nodes)], ""
    if len(gpus) < nodes:
        have = plural(len(gpus), "GPU")
        return [[] for _ in range(nodes)], f"{where} has {have} for {nodes} nodes, so the ranks run on the CPU"
    each = len(gpus) // nodes if wanted is None else wanted
    if nodes == 1 and each > len(gpus):
        raise Rejected(f"--gpus {each} was asked for, {where} has {len(gpus)}", f"ask for --gpus {len(gpus)} or fewer")
    if each * nodes > len(gpus):
        raise Rejected(
            f"{nodes} nodes with {each} GPUs each need {each * nodes}, {where} has {len(gpus)}",
            f"ask for --gpus {len(gpus) // nodes}, or for fewer --nodes",
        )
    return [list(gpus[index * each : (index + 1) * each]) for index in range(nodes)], ""


CPU_RANKS = 2
"""Ranks per node on a machine without GPUs: the fewest that show what several do."""


def with_virtual(machines: Sequence[Resource], nodes: int = 0) -> list[Resource]:
    """The machine of each node: machines, then the virtual nodes that they list, or as many as `nodes` asks for. The
    machines bear them in turn."""
    listed = [index for machine in machines for index in machine.data.get("virtual") or ()]
    more = range(len(machines), max([nodes, *(index + 1 for index in listed)]))
    if not machines:
        return []
    return [*machines, *(_virtual(machines[index % len(machines)], index % len(machines), index) for index in more)]


def _virtual(machine: Resource, owner: int, index: int) -> Resource:
    """A node on the machine of node `owner`, reached as that one is and paid with it. Its processes may be started
    again where somebody killed them: the machine's life does not hang on them."""
    data = {name: value for name, value in machine.data.items() if name not in ("virtual", "gpus", "cores_share")}
    name = f"{machine.name.rpartition('-')[0]}-{index}"
    data |= {"on": owner, "revives": True}
    return dataclasses.replace(machine, name=name, bills=False, per_hour=0.0, data=data)


def is_virtual(machine: Resource) -> bool:
    return machine.data.get("on") is not None


def bears_virtual(machine: Resource) -> bool:
    """Whether a machine can have virtual nodes. In a batch system's job it cannot: what makes a node begins beside the
    job, and would be on the login node."""
    return not machine.data.get("inside_modes")


def host_index(machine: Resource, index: int) -> int:
    """Whose machine a node is on: its own, or that of another node."""
    return int(machine.data["on"]) if is_virtual(machine) else index


def fold_virtual(found: Sequence[Resource]) -> list[Resource]:
    """Machines that list their virtual nodes, of every node that a provider has found, in node order."""
    machines = [one for one in found if not is_virtual(one)]
    more: dict[int, list[int]] = {}
    for index, one in enumerate(found):
        if is_virtual(one):
            more.setdefault(host_index(one, index), []).append(index)
    return [
        dataclasses.replace(one, data={**one.data, "virtual": more[index]}) if index in more else one
        for index, one in enumerate(machines)
    ]


@dataclass(frozen=True)
class GpuShare:
    """What one node of a run has of its machine."""

    gpus: Sequence[str] | None
    """None: whatever there is."""
    count: int
    """Of GPUs."""
    cores_share: float


def share_gpus(
    machines: Sequence[Resource], gpus: Sequence[Sequence[str]], wanted: int | None
) -> tuple[list[GpuShare], list[str]]:
    """What each node of a run has, and sentences that a user should know. `machines`: each node's; `gpus`: the
    indices of each machine's GPUs, by its first node; `wanted`: ranks per node, where asked for.

    Raises UsageError where GPUs are wanted that are not there.
    """
    groups: dict[int, list[int]] = {}
    for index, machine in enumerate(machines):
        groups.setdefault(host_index(machine, index), []).append(index)
    found: dict[int, GpuShare] = {}
    notes: list[str] = []
    for first, members in groups.items():
        indices = _gpus(machines[first], gpus[first])
        share = float(machines[first].data.get("cores_share") or 1.0)
        if len(members) == 1:
            limited = machines[first].data.get("gpus") is not None
            found[first] = GpuShare(indices if limited else None, len(indices), share)
            continue
        parts, said = _divided(indices, len(members), wanted, f"the machine of node{first}")
        notes += said
        found |= {
            index: GpuShare(part, len(part), share / len(members)) for index, part in zip(members, parts, strict=True)
        }
    return [found[index] for index in range(len(machines))], notes


def count_gpus(machines: Sequence[Resource], gpus: Sequence[Sequence[str]]) -> list[int]:
    """How many GPUs of each machine its nodes can share. `gpus`: the indices of all that it has."""
    pairs = zip(machines, gpus, strict=False)
    return [len(_gpus(machine, found)) if bears_virtual(machine) else 0 for machine, found in pairs]


def _gpus(machine: Resource, all_gpus: Sequence[str]) -> list[str]:
    """Those of a machine that this cluster may use."""
    known = machine.data.get("gpus")
    return list(all_gpus) if known is None else [str(gpu) for gpu in known]


def _divided(gpus: Sequence[str], nodes: int, wanted: int | None, where: str) -> tuple[list[list[str]], list[str]]:
    try:
        parts, note = divide(gpus, nodes, wanted, where)
    except Rejected as refused:
        raise UsageError(refused.message, refused.hint) from refused
    spare = len(gpus) - sum(map(len, parts))
    if spare and not note and wanted is None:
        note = f"{len(gpus)} GPUs do not divide among {nodes} nodes: {spare} of {where} {_are(spare)} not used"
    return parts, [note] if note else []


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def describe_shares(given: Sequence[GpuShare], machines: int) -> str:
    """`2 nodes on 1 machine: virtual nodes, 2 GPUs each`."""
    counts = [share.count for share in given]
    each = f"{plural(counts[0], 'GPU')} each" if len(set(counts)) == 1 else f"{listed([*map(str, counts)])} GPUs"
    what = each if any(counts) else "which share cores, memory and disk"
    return f"{len(given)} nodes on {plural(machines, 'machine')}: virtual nodes, {what}"


def ranks_for(request: RunRequest, gpus: int) -> int:
    """How many ranks a node with `gpus` GPUs runs. Raises UsageError when it has too few.

    Its cores do not change that: two ranks show what several do even where they share one.
    """
    if request.mode == "single":
        return 1
    if request.gpus is None:
        return gpus or CPU_RANKS
    if 0 < gpus < request.gpus:
        raise UsageError(
            f"--gpus {request.gpus} was asked for, but a node has {plural(gpus, 'GPU')}",
            f"ask for --gpus {gpus} or fewer, or leave --gpus out",
        )
    return request.gpus
