"""One machine's GPUs among the nodes on it."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.errors import Rejected


def divide(gpus: Sequence[str], nodes: int, wanted: int | None, where: str) -> tuple[list[list[str]], str]:
    """Each node's GPUs on one machine, which sentences call `where`, and a sentence where the user should know.

    Without GPUs every share is empty. `wanted` GPUs per node, or all, divided evenly.
    Raises Rejected when GPUs exist and are wanted in a number that is not there.
    """
    if not gpus:
        return [[] for _ in range(nodes)], ""
    if len(gpus) < nodes:
        have = f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}"
        return [[] for _ in range(nodes)], f"{where} has {have} for {nodes} nodes, so the ranks run on the CPU"
    each = len(gpus) // nodes if wanted is None else wanted
    if each * nodes > len(gpus):
        raise Rejected(
            f"{nodes} nodes with {each} GPUs each need {each * nodes}, {where} has {len(gpus)}",
            f"ask for --gpus {len(gpus) // nodes}, or for fewer --nodes",
        )
    return [list(gpus[index * each : (index + 1) * each]) for index in range(nodes)], ""
