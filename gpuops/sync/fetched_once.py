"""Data at an address come into a cluster once: the first machine fetches them, and the others get them from there.

What it has goes on from node to node as a push does (`push_chain`), over the cluster's own network, once it is whole:
a download may still begin again because its source changed, and nothing of it may count before. A node that does not
get it so fetches by itself. Only where machines at AWS fetch from a bucket in their own region does each fetch for
itself: that costs nothing, and S3 serves each at the rate of its own network, where a chain is as fast as its slowest
link.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from gpuops.core.context import Context
from gpuops.core.errors import NodeError
from gpuops.core.parallel import on_each
from gpuops.sync.copy_from_node import Copies, CopyPush, deliver_copies, list_copies
from gpuops.sync.data_sources import Source
from gpuops.sync.project_files import FileEntry
from gpuops.sync.push_transports import Delivery
from gpuops.sync.upload import plan_node
from gpuops.transport.rpc import AgentClient

MODE = 0o644
"""Of data on a node, whatever the node says that has fetched them."""

Version = tuple[str, str, int]
"""ETag, Last-Modified and size, as a server has told them."""
Target = tuple[AgentClient, Sequence[int]]
"""A node, and which of the source's files it lacks."""


class Sent(NamedTuple):
    """What has come to one node."""

    push: str = ""
    """As which files have come; empty where there is nothing to take in."""
    is_all: bool = False
    """Whether nothing is missing, as far as is known here."""


def is_fetched_once(source: Source, machines: int, region: str) -> bool:
    """Whether one machine fetches for all. `region`: the one of Amazon's in which all of them are; empty elsewhere."""
    return machines > 1 and not (region and source.region == region)


@dataclass(frozen=True)
class Fetched:
    """A source that one node has fetched."""

    source: Source
    version: Version | None
    """Of the only file, where no listing tells it."""
    node: AgentClient
    tree_name: str


def send_copies(ctx: Context, fetched: Fetched, targets: Sequence[Target]) -> list[Sent]:
    """Send other nodes what they lack, and say why one does not get it so. Returns what has come to each."""
    sent = {client.label: Sent() for client, _ in targets}
    lacking = [(client, numbers) for client, numbers in targets if numbers]
    if lacking and (fetched.version or fetched.source.files[0].etag):
        label = fetched.node.label
        try:
            copies = _list_fetched(fetched)
            deliveries = [one for one in on_each(partial(_plan, ctx, fetched, copies), lacking) if one]
            sent |= {one.client.label: Sent(one.push) for one in deliveries}
            failed = deliver_copies(copies, [one for one in deliveries if one.files], ctx.progress)
        except NodeError as error:
            ctx.out.say(f"data: not all of it comes from {label} to the others, which fetch the rest: {error.message}")
        else:
            for other, why in failed.items():
                ctx.out.say(f"data: {other} fetches by itself: {why}")
            served = {one.client.label for one in deliveries} - failed.keys()
            sent |= {other: sent[other]._replace(is_all=True) for other in served}
    return list(sent.values())


def _list_fetched(fetched: Fetched) -> Copies:
    """The source's files as they are where they were fetched, without those that are not as long as the source's."""
    version = fetched.version
    sizes = {file.path: version[2] if version else file.size for file in fetched.source.files}
    listed = list_copies(fetched.node, fetched.tree_name, [])
    files = [
        FileEntry(file.path, file.size, file.mtime_ns, MODE)
        for file in listed.files
        if sizes.get(file.path) == file.size
    ]
    return dataclasses.replace(listed, files=files)


def _plan(ctx: Context, fetched: Fetched, copies: Copies, target: Target) -> Delivery | None:
    """What one node is to be sent, under the name of a tree of its own; None where it takes nothing."""
    client, numbers = target
    lacking = {fetched.source.files[number].path for number in numbers}
    push = CopyPush(copies, f"{fetched.tree_name}copies", overwrite=False)
    try:
        delivery = plan_node(push, client).delivery
    except NodeError as error:
        ctx.out.say(f"data: {client.label} fetches by itself: {error.message}")
        return None
    return dataclasses.replace(delivery, files=[one for one in delivery.files if one[1].path in lacking])
