"""Which command line each node runs. Pure: a request and facts about nodes in, launch specs out.

The recipe (static rendezvous, a fresh port and id for every attempt, no restarts by torchrun, a
rank wrapper that keeps each rank's bytes) is explained in docs/architecture.md, section 6; the
spec's fields in docs/protocol.md.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuops.core.models import DATA
from gpuops.core.run_models import NodeFacts, RunRequest
from gpuops.ledger.store import RowGone, RunRow
from gpuops.sync import sinks
from gpuops.sync.workloads_and_data import WORKLOADS

if TYPE_CHECKING:
    from gpuops.nodes.session import ClusterSession

JOIN_TIMEOUT_S = 300
"""How long torchrun waits for the other nodes: a cold import of torch from a network file system takes minutes."""


OUTER_LAUNCHER = (
    "PET_", "MASTER_", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
)  # fmt: skip
"""What a provider's image or an outer launcher may have set, and torchrun would believe."""
OF_MPI = ("PMI_", "PMI2_", "PMIX_")
BATCH_SYSTEM = ("SLURM_", "SLURMD_", "PBS_", *OF_MPI)
"""What a batch system says of a job, by which Lightning and MPI would take the ranks for theirs."""
SCRUB = (*OUTER_LAUNCHER, *BATCH_SYSTEM, "GPUOPS_HOST_KEY", "RUNPOD_API_KEY")
"""What is taken from a node's environment: that, and the machine's own keys."""

IDENTITY = re.compile(
    r"PET_.*|MASTER_(ADDR|PORT)|TORCHELASTIC_(RUN_ID|ERROR_FILE)|((LOCAL|NODE|GROUP|ROLE)_)?RANK"
    r"|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|GPUOPS_(RUN|NODE|NODES|NODE_RANK|HEAD|ARRAY_INDEX|(STOP|SNAPSHOT)_FILE|PROGRESS)"
)
"""Variables that say which process of a run this is: refused in the user's `--env`."""


UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""Without it, what a rank prints through a pipe arrives when its buffer is full."""

Place = tuple[str, int]
"""Address and port."""


def request_of(row: RunRow) -> RunRequest:
    """The run's request as the ledger keeps it. Raises RowGone."""
    try:
        return RunRequest.parse(row.request)
    except (TypeError, ValueError) as error:
        raise RowGone(
            f"what the ledger says of {row.name} cannot be read", f"its results so far are in {row.home}"
        ) from error


def session_of(session: ClusterSession, row: RunRow) -> ClusterSession:
    """The part of a cluster's session that a run's nodes are. Raises RowGone."""
    numbers = request_of(row).nodes_at
    return session.part(numbers) if numbers else session


def torchrun_command(
    node: NodeFacts,
    *,
    nodes: int,
    master: Place,
    rendezvous: str,
    command: Sequence[str],
) -> list[str]:
    """The torchrun line of one node; `command` is what a rank runs, byte for byte.

    `{python}`, `{agent}` and `{run}` are filled in by the node's agent, up to the first `--`. In an image the agent's
    Python need not be, and the run's own starts the rank wrapper.
    """
    return [
        node.python, "-m", "torch.distributed.run",
        *torchrun_options(nodes=nodes, node=node.index, ranks=node.ranks, master=master, rendezvous=rendezvous),
        "--log-dir={run}/elastic", "--no-python",
        node.python if node.within else "{python}", "-I", "{agent}", "rank", "--node-run", "{run}", "--",
        *command,
    ]  # fmt: skip


def torchrun_options(
    *,
    nodes: int,
    node: int | str,
    ranks: int,
    master: tuple[str, int | str],
    rendezvous: str,
    join_timeout_s: int = JOIN_TIMEOUT_S,
) -> list[str]:
    """How torchrun forms the world. In an exported script, `node`, `master` and `rendezvous` are shell variables."""
    return [
        f"--nnodes={nodes}", f"--node-rank={node}", f"--nproc-per-node={ranks}",
        f"--master-addr={master[0]}", f"--master-port={master[1]}",
        f"--rdzv-id={rendezvous}", f"--rdzv-conf=timeout={join_timeout_s}", "--max-restarts=0",
    ]  # fmt: skip


def rank_command(request: RunRequest, python: str) -> list[str]:
    """What one rank runs: the user's script or module, with its arguments byte for byte."""
    if request.module is not None:
        return [python, "-m", request.module, *request.argv]
    script = request.script or ""
    # Python would take a script whose name starts with a dash for an option.
    return [python, f"./{script}" if script.startswith("-") else script, *request.argv]


def line_to_start_once(request: RunRequest, flags: Sequence[str] = ()) -> str:
    """What to type for a program that starts its own ranks: it is started once, and not by torchrun."""
    return shlex.join(["gpuops", "run", *flags, "--", *rank_command(request, "python")])


def _here(node: NodeFacts, parts: Sequence[NodeFacts]) -> dict[str, int]:
    """How much of the run is on this node's machine."""
    beside = [other for other in parts if other.address == node.address]
    return {"nodes": len(beside), "ranks": sum(other.ranks for other in beside)}


def node_specs(
    request: RunRequest,
    *,
    run: str,
    cluster: str,
    tree: str,
    nodes: Sequence[NodeFacts],
    master: Place | None,
    gang: Place | None,
    attempt: int,
) -> list[dict[str, Any]]:
    """The launch spec of each node that takes part, in node order (docs/protocol.md).

    A plain command runs on the first node alone unless `request.all_nodes`, and needs no
    `master`; a run of one node needs no `gang`.
    """
    torchrun = request.kind == "torchrun"
    parts = [node if torchrun else replace(node, ranks=0) for node in nodes]
    if not (torchrun or request.all_nodes):
        parts = parts[:1]
    shared: dict[str, Any] = {
        "schema": 1,
        "run": run,
        "attempt": attempt,
        "cluster": cluster,
        "nodes": len(parts),
        "tree": tree,
        "kind": request.kind,
        "scrub": list(SCRUB),
        "world": sum(node.ranks for node in parts),
        "master": _place(master),
        "gang": _place(gang) if len(parts) > 1 else None,
        "prelude": list(request.prelude),
        "outs": list(request.outs),
        "grace_s": request.grace_s,
    }
    if torchrun and request.join_timeout_s is not None:
        shared["join_timeout_s"] = request.join_timeout_s
    if request.hold_s is not None:
        shared["hold_s"] = request.hold_s
    if sink := sinks.spec_document(request, run):
        shared["sink"] = sink
    if request.workload and WORKLOADS[request.workload].reads and request.data is None:
        shared["data"] = request.workload
    return [
        shared
        | {
            "node": node.index,
            "argv": _argv(request, node, len(parts), master, f"{run}-a{attempt}"),
            "env": _environment(request, node, parts),
            "user_env": user_variables(request, node.data),
            **({"within": [*node.within]} if node.within else {}),
            "path_first": [folder] if (folder := posixpath.dirname(node.python)) else [],
            "ranks": node.ranks,
            "rank_base": sum(before.ranks for before in parts[:position]),
            "here": _here(node, parts),
        }
        for position, node in enumerate(parts)
    ]


def _argv(request: RunRequest, node: NodeFacts, nodes: int, master: Place | None, rendezvous: str) -> list[str]:
    if request.kind == "command":
        return list(request.argv)
    assert master is not None, "torchrun needs a place to meet"
    command = rank_command(request, node.python)
    return torchrun_command(node, nodes=nodes, master=master, rendezvous=rendezvous, command=command)


def _environment(request: RunRequest, node: NodeFacts, nodes: Sequence[NodeFacts]) -> dict[str, str]:
    """What we set, with tokens for what only the node knows."""
    env = {**UNBUFFERED, "SPT_NOENV": "1", **node.env}
    if node.interface:
        env.update(interface_variables(node.interface))
    if node.gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, node.gpus))
    if request.array_index is not None:
        env["GPUOPS_ARRAY_INDEX"] = str(request.array_index)
    if request.kind == "torchrun":
        env["OMP_NUM_THREADS"] = str(threads_per_rank(int(node.cores * node.cores_share), node.ranks))
        env["TORCHELASTIC_ERROR_FILE"] = "{run}/agent_error.json"
    else:
        env.update(GPUOPS_NODE_RANK=str(node.index), GPUOPS_NODES=str(len(nodes)), GPUOPS_HEAD=nodes[0].address)
    return env


def interface_variables(interface: str) -> dict[str, str]:
    """What tells gloo and NCCL the network interface to use."""
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": "=" + interface}  # `=`: this one, not a prefix


def threads_per_rank(cores: int, ranks: int) -> int:
    """OMP_NUM_THREADS: a rank's share of its node's cores."""
    return max(1, cores // ranks)


def user_variables(request: RunRequest, data: str | None = None) -> dict[str, str]:
    """The user's variables, which override ours, byte for byte; those of IDENTITY are left out.

    `data`: where the node has the data; None: where the request says.
    """
    known = {DATA: data or request.data} if request.data is not None else {}
    return known | {name: value for name, value in request.env.items() if not IDENTITY.fullmatch(name)}


def _place(place: Place | None) -> dict[str, Any] | None:
    return {"address": place[0], "port": place[1]} if place else None
