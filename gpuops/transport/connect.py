"""The way to a node: which kind of connection reaches a machine, as its provider describes it."""

from __future__ import annotations

from pathlib import Path

from gpuops.core.errors import NodeError
from gpuops.core.models import Resource
from gpuops.transport.connection import Connection, ProcessConnection


def connect(machine: Resource, index: int) -> Connection:
    """The connection that fits how `machine` is reached (`data["connection"]`, and `data["inside"]` where the node is
    within what that reaches)."""
    outer = _connect_machine(machine, index)
    inside = machine.data.get("inside")
    if not inside:
        return outer
    from gpuops.transport.nested import NestedConnection

    return NestedConnection(outer, [str(word) for word in inside], machine.data.get("inside_modes"))


def _connect_machine(machine: Resource, index: int) -> Connection:
    kind = machine.data.get("connection")
    if kind == "process":
        return ProcessConnection(f"node{index}")
    if kind == "ssh":
        from gpuops.transport import ssh

        if missing := [name for name in ("target", "ssh_folder") if not machine.data.get(name)]:
            raise NodeError(
                f"the provisioner does not say of {machine.name}: {', '.join(missing)}",
                "this is a bug in the provisioner: report it to whoever wrote it",
            )
        target = ssh.Target.from_document(machine.data["target"])
        return ssh.connect(target, f"node{index}", Path(machine.data["ssh_folder"]))
    raise NodeError(
        f"node{index} is reached by '{kind}', which this version of gpuops does not speak",
        "upgrade gpuops",
    )
