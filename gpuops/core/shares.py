"""One machine's GPUs among the nodes on it: whether these were asked for by `up` or by a run."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.core.errors import Rejected

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
        have = f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}"
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
