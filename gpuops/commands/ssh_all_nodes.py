"""`gpuops ssh --all-nodes -- COMMAND`: one command on every node at once, its lines told apart by their node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import BinaryIO

from gpuops.commands.ssh import node_command
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError
from gpuops.core.models import Resource
from gpuops.core.parallel import on_each
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.session import explain_connection_loss, readmit_this_computer
from gpuops.transport.connect import connect

READ_BYTES = 65536


def run_on_all_nodes(ctx: Context, row: ClusterRow, machines: Sequence[Resource], command: Sequence[str]) -> int:
    """Run a command on every node, in the project's folder there, and print what each prints as `[n0] line`.

    Returns the highest exit code. A node that cannot be reached is named, and keeps no other from its answer.
    """

    def run(node: int) -> int:
        try:
            try:
                return _run(ctx, row, machines[node], node, command)
            except ConnectionLost as error:
                if not readmit_this_computer(ctx, row, ctx.ledger.resources(row.id)):
                    raise explain_connection_loss(ctx, row, error) from error
                return _run(ctx, row, machines[node], node, command)
        except GpuopsError as error:
            ctx.out.say(f"[n{node}] error: {error.message}\n[n{node}] hint: {error.hint}")
            return error.exit_code

    return max(on_each(run, range(len(machines))), default=0)


def _run(ctx: Context, row: ClusterRow, machine: Resource, node: int, command: Sequence[str]) -> int:
    with closing(connect(machine, node)) as connection:
        channel = connection.open(node_command(row, machine, node, command, merged=True))
        channel.stdin.close()
        for line in _lines(channel.stdout):
            ctx.out.line(f"[n{node}] {line}")
        code = channel.wait()
        return code if code >= 0 else 128 - code  # a signal, as a shell reports it


def _lines(stream: BinaryIO) -> Iterator[str]:
    """The lines of a stream as they come."""
    rest = b""
    while chunk := stream.read(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (_text(line) for line in lines)
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")
