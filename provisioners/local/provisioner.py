"""Nodes on this computer, behind the contract: a node is `<home>/local/<cluster>/n<index>` and the processes in it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuops.core.account_variables import OURS
from gpuops.core.files import write_atomic
from gpuops.core.format import plural
from gpuops.core.models import MACHINE, Intent, Journal, Offer, Option, Problem, Request, Resource, ResourceState
from gpuops.core.platform import HERE, System
from gpuops.nodes.gpu_shares import divide
from provisioners.base import CONTRACT, Context
from provisioners.local.processes import is_watchdog_alive, kill_processes, start_node
from provisioners.ssh.placement import refuse_rental_flags

REGION = "local"


class LocalProvisioner:
    """The contract for nodes on this computer."""

    contract = CONTRACT
    name = "local"
    capabilities: Mapping[str, bool | str] = {
        "multinode": True,
        "spot": "this machine is not rented, so there is no spot price",
        "self_destruct": "a local node is processes and a folder; its watchdog ends the processes",
        "host_keys": "local nodes are reached without SSH",
        "rented": "this machine is yours",
        "shares_disk": True,
    }
    options: Sequence[Option] = ()
    examples: Sequence[str] = ("--nodes 2", "--name lab --max-hours 3")
    credentials: Sequence[str] = OURS["local"].credentials
    surroundings: Sequence[str] = OURS["local"].surroundings
    settle_s = 0.0
    gone_s = 60.0

    def __init__(self, context: Context, system: System = HERE) -> None:
        self.context = context
        self.system = system
        self.root = context.home / "local"
        self._ending: dict[str, subprocess.Popen[bytes]] = {}

    def preflight(self, request: Request) -> Sequence[Problem]:
        refuse_rental_flags(request, "local nodes are this machine", ", or name another provider")
        problems = []
        if not self.system.local_nodes:
            problems.append(
                Problem(
                    "local nodes need Linux or macOS",
                    "start gpuops in WSL, or use hosts by SSH: --on ssh --host user@address",
                )
            )
        return problems

    def offers(self, request: Request) -> Sequence[Offer]:
        """One offer: this machine, its GPUs divided among the nodes (none, where they do not suffice)."""
        gpus = visible_gpus()
        shares, note = divide(gpus, request.nodes, request.gpus, "this machine")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        each = plural(len(shares[0]), "GPU") if shares and shares[0] else "CPU"
        share = f"{each} each, {cores} cores shared" if request.nodes > 1 else f"{each}, {cores} cores"
        what = f"{plural(request.nodes, 'node')} on this machine ({share})"
        return [
            Offer(
                "local",
                "this-machine",
                what,
                request.nodes,
                len(shares[0]) if shares else 0,
                region=REGION,
                notes=(note,) if note else (),
                data={"gpus": shares},
            )
        ]

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        artefact = self._install(intent.agent)
        shares = offer.data.get("gpus") or [None] * offer.nodes
        return [
            self._create_node(index, gpus, artefact, offer, intent, journal)
            for index, gpus in zip(range(offer.nodes), shares, strict=True)
        ]

    def _create_node(
        self, index: int, gpus: Sequence[str] | None, artefact: Path, offer: Offer, intent: Intent, journal: Journal
    ) -> Resource:
        mark = intent.mark(index)
        journal.will(MACHINE, mark, intent.token, REGION)
        folder = self.root / intent.cluster / f"n{index}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        document = {
            "node": {
                "cluster": intent.cluster,
                "owner": intent.owner,
                "index": index,
                "mark": mark,
                "token": intent.token,
                "end": None,
                "gpus": gpus,
                "cores_share": 1 / offer.nodes,
                "artefact": artefact.stem,
            },
            "lease": {"boot_in": max(1.0, intent.boot_deadline - self.context.clock.now())},
        }
        start_node(artefact, folder, document)
        resource = self._resource(folder)
        journal.got(resource)
        return resource

    def _install(self, agent: Path) -> Path:
        """The agent's place among local nodes, by content; written where that is not what lies there."""
        target = self.root / "agent" / agent.name
        content = agent.read_bytes()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(target, content)
        return target

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        """Every node folder there is: they lie in this user's own home, so all are the owner's."""
        return [
            self._resource(folder)
            for folder in sorted(self.root.glob("*/n*"))
            if folder.is_dir() and folder.name[1:].isdigit()
        ]

    def _resource(self, folder: Path) -> Resource:
        """A node as its own file describes it, which needs no ledger."""
        mark = f"gpuops-{self.context.owner}-{folder.parent.name}-{folder.name[1:]}"
        return Resource(
            kind=MACHINE,
            id=str(folder),
            region=REGION,
            name=mark,
            bills=False,
            state=ResourceState.RUNNING if is_watchdog_alive(folder) else ResourceState.ENDED,
            address="127.0.0.1",
            private_address="127.0.0.1",
            data={"connection": "process", "root": str(self.root), "python": sys.executable, **_read_settings(folder)},
        )

    def describe(self, resource: Resource) -> Resource:
        folder = Path(resource.id)
        if not folder.exists():
            return dataclasses.replace(resource, state=ResourceState.ENDED)
        return self._resource(folder)

    def destroy(self, resources: Sequence[Resource]) -> None:
        """Ask each node to end and to remove its folder; a program of its own does it."""
        for resource in resources:
            folder = Path(resource.id)
            ending = self._ending.get(resource.id)
            if folder.parent.parent != self.root or not folder.exists() or (ending and ending.poll() is None):
                continue
            artefact = self._any_artefact(folder)
            if artefact is None:  # nothing was ever started here, or the agents' own folder was deleted
                if kill_processes(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            self._ending[resource.id] = subprocess.Popen(
                [sys.executable, "-I", str(artefact), "end", "--node", str(folder), "--remove"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )

    def _any_artefact(self, folder: Path) -> Path | None:
        """The newest agent installed here: `end` understands the files of every earlier one."""
        found = sorted((self.root / "agent").glob("*.pyz"), key=lambda path: path.stat().st_mtime)
        return found[-1] if found and (folder / "node.json").exists() else None

    def self_destruct(self, resource: Resource) -> Sequence[str] | None:
        return None


def _read_settings(folder: Path) -> dict[str, object]:
    """GPUs, share of the cores, artefact, token, and for a virtual node whose machine it shares, from `node.json`;
    nothing where the node never came to life."""
    try:
        node = json.loads((folder / "node.json").read_text(encoding="utf-8"))
        return {name: node[name] for name in ("gpus", "cores_share", "artefact", "token")} | {"on": node.get("on")}
    except (OSError, ValueError, KeyError):
        return {}


def visible_gpus() -> list[str]:
    """This machine's NVIDIA GPUs that the user lets us see, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [part.strip() for part in visible.split(",") if part.strip() not in ("", "-1")]
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, encoding="utf-8", errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    count = sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
    return [str(index) for index in range(count)]
