"""A node on one of the user's hosts, as a resource. Pure."""

from __future__ import annotations

import json
from pathlib import Path

from gpuops.core.models import MACHINE, Resource
from provisioners.ssh.container_host import FoundNode
from provisioners.ssh.container_spec import enter_words, parse_spec
from provisioners.ssh.host_agent import NodeRecord
from provisioners.ssh.hosts import KnownHost


def node_resource(name: str, known_host: KnownHost, node: NodeRecord, ssh_folder: Path) -> Resource:
    """`name`: of the host; `ssh_folder`: see `models.Resource`."""
    return Resource(
        kind=MACHINE,
        id=resource_id(name, node.folder),
        region=name,
        name=node.mark,
        bills=False,
        state=node.state,
        address=known_host.target.host,
        port=known_host.target.port,
        data={
            "connection": "ssh",
            "target": known_host.target.document(),
            "ssh_folder": str(ssh_folder),
            "root": known_host.root,
            "python": known_host.python,
            "revives": True,
            "folder": node.folder,
            "gpus": node.gpus,
            "cores_share": node.cores_share,
            "artefact": node.artefact,
            "token": node.token,
            "on": node.on,
            **({"within": node.within} if node.within else {}),
        },
    )


def contained_resource(name: str, known_host: KnownHost, node: FoundNode, ssh_folder: Path) -> Resource:
    """Of a node in a container."""
    spec = node.spec
    present = {"phase": node.phase, "hopeless": node.hopeless, "why_ended": node.why_ended}
    return Resource(
        kind=MACHINE,
        id=f"{name}:{spec.node}",
        region=name,
        name=spec.mark,
        bills=False,
        state=node.state,
        address=known_host.target.host,
        port=known_host.target.port,
        data={
            "connection": "ssh",
            "target": known_host.target.document(),
            "ssh_folder": str(ssh_folder),
            "root": spec.root,
            "folder": spec.node,
            "inside": enter_words(spec),
            "container": spec.document(),
            "gpus": spec.gpus,
            "cores_share": spec.cores_share,
            "token": spec.token,
            **{word: said for word, said in present.items() if said},
        },
    )


def resource_id(host: str, folder: str) -> str:
    return f"{host}:{folder}"


def known_host_of(resource: Resource) -> KnownHost:
    """The host of a node, from the node's resource: it may have been removed from the file of hosts."""
    from gpuops.transport.ssh import Target

    data = resource.data
    target, python = Target.from_document(dict(data["target"])), str(data.get("python") or "")
    engine = parse_spec(json.loads(str(data["container"]))).engine if data.get("container") else ""
    return KnownHost(target, str(data["root"]), python, engine)
