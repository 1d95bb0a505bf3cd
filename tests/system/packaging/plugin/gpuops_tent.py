"""Tents: machines that are folders and processes on this computer, at a pretend price. An example of a provider.

What a cloud would remember lies under `<home>/tent/`: `ground/` has a file for each tent that stands and bills,
`struck/` one for each that does not any more; `chests/` holds what outlives them. What would lie on a machine's own
disk is under `nodes/`.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuops.core.errors import Rejected, Unknown
from gpuops.core.models import Intent, Journal, Offer, Option, Price, Problem, Request, Resource
from provisioners.base import CONTRACT, Context

PER_HOUR = {"small": 0.36, "large": 0.72}
CREDIT = 20.0
REGION = "meadow"
STEP_S = 50.0
STRIKE = """
import os, sys
standing, struck = sys.argv[1:]
try:
    os.utime(standing)
    os.replace(standing, struck)
except FileNotFoundError:
    pass
"""
"""A tent goes: from now on it is not listed and bills no more. Asking again is harmless."""


class TentProvisioner:
    contract = CONTRACT
    name = "tent"
    capabilities: Mapping[str, bool | str] = {
        "multinode": True,
        "spot": "a tent costs the same by day and by night",
        "self_destruct": True,
        "host_keys": "a tent is entered without SSH",
        "rented": True,
        "shares_disk": True,
    }
    options: Sequence[Option] = (
        Option("size", "How large a tent: small or large; without, either."),
        Option("volume", "A chest that stays when the tent is struck: what is in it can be found again."),
    )
    credentials: Sequence[str] = ()  # nobody has a key to a meadow
    surroundings: Sequence[str] = ()
    settle_s = 0.0
    gone_s = 60.0

    def __init__(self, context: Context) -> None:
        self.owner = context.owner
        self.root = context.home / "tent"

    # -- before anything is made ------------------------------------------------------------------

    def preflight(self, request: Request) -> Sequence[Problem]:
        wishes = {"--gpu-type": request.gpu_type, "--gpu-mem": request.gpu_mem, "--image": request.image}
        problems = [
            Problem(f"{flag} is nothing that a tent has", f"leave out {flag}")
            for flag, value in wishes.items()
            if value is not None
        ]
        if request.region not in (None, REGION):
            problems.append(Problem(f"there is no {request.region}: tents stand in the {REGION}", "leave out --region"))
        if request.options.get("size", "small") not in PER_HOUR:
            problems.append(Problem(f"no tent is {request.options['size']}", f"--size is {' or '.join(PER_HOUR)}"))
        chest = request.options.get("volume")
        if chest and not (self.root / "chests" / chest).is_dir():
            problems.append(Problem(f"there is no chest named {chest}", f"make one: {self.root / 'chests' / chest}"))
        return problems

    def offers(self, request: Request) -> Sequence[Offer]:
        wanted = request.options.get("size")
        many = f"{request.nodes} tents" if request.nodes > 1 else "1 tent"
        return [
            Offer(
                self.name,
                size,
                f"{many} ({size})",
                request.nodes,
                0,
                REGION,
                (Price(many, per_hour * request.nodes),),
                {"per_hour": per_hour, "volume": request.options.get("volume")},
            )
            for size, per_hour in PER_HOUR.items()
            if wanted in (None, size)
        ]

    # -- making, finding, ending ------------------------------------------------------------------

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        made = []
        for index in range(offer.nodes):
            token = f"{intent.token}-{index}"
            journal.will("machine", intent.mark(index), token, REGION)
            made.append(self._pitch(index, token, offer, intent))
            journal.got(made[-1])
        return made

    def _pitch(self, index: int, token: str, offer: Offer, intent: Intent) -> Resource:
        """A tent stands from the moment its file is there; then its node is brought to life."""
        nodes = self.root / "nodes"
        chest = offer.data.get("volume")
        tent = Resource(
            kind="machine",
            id=token,
            region=REGION,
            name=intent.mark(index),
            bills=True,
            state="running",
            address="127.0.0.1",
            per_hour=offer.data["per_hour"],
            data={
                "connection": "process",
                "root": str(nodes),
                "python": sys.executable,
                "artefact": intent.agent.stem,
                "token": token,
                "began": time.time(),
                "mounts": {chest: str(self.root / "chests" / chest)} if chest else {},
            },
        )
        for folder in ("ground", "struck", "nodes/agent"):
            (self.root / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        written = self._standing(tent).with_suffix(".new")  # whoever lists meanwhile reads all of it or nothing
        written.write_text(json.dumps(dataclasses.asdict(tent)))
        written.replace(self._standing(tent))
        agent = nodes / "agent" / intent.agent.name
        agent.write_bytes(intent.agent.read_bytes())
        node = {
            "cluster": intent.cluster,
            "owner": intent.owner,
            "index": index,
            "mark": tent.name,
            "token": token,
            "end": self.self_destruct(tent),
        }
        lease = {"boot_in": max(1.0, intent.boot_deadline - time.time())}
        self._agent(agent, "init", self._folder(tent), json.dumps({"node": node, "lease": lease}))
        return tent

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        if regions and REGION not in regions:
            return []
        standing = [self._read(path) for path in sorted((self.root / "ground").glob("*.json"))]
        return [tent for tent in standing if tent and tent.name.startswith(f"gpuops-{owner}-")]

    def describe(self, resource: Resource) -> Resource:
        return self._read(self._standing(resource)) or dataclasses.replace(resource, state="ended")

    def destroy(self, resources: Sequence[Resource]) -> None:
        for tent in resources:
            folder = self._folder(tent)
            if folder.exists():
                agent = self.root / "nodes" / "agent" / f"{tent.data['artefact']}.pyz"
                self._agent(agent, "end", folder, "", "--remove")
            subprocess.run(self.self_destruct(tent), timeout=STEP_S, check=False)

    def self_destruct(self, resource: Resource) -> Sequence[str]:
        standing = self._standing(resource)
        return [sys.executable, "-I", "-c", STRIKE, str(standing), str(self.root / "struck" / standing.name)]

    def balance(self) -> float:
        now = time.time()
        billed = 0.0
        for path in self.root.glob("*/*.json"):
            if tent := self._read(path):
                ended = path.stat().st_mtime if path.parent.name == "struck" else now
                billed += tent.per_hour * (ended - tent.data["began"]) / 3600
        return CREDIT - billed

    # -- the ground -------------------------------------------------------------------------------

    def _standing(self, tent: Resource) -> Path:
        return self.root / "ground" / f"{tent.id}.json"

    def _folder(self, tent: Resource) -> Path:
        """Where gpuops looks for a node: `<root>/<cluster>/n<index>`."""
        cluster, _, index = tent.name.split("-", 2)[2].rpartition("-")
        return self.root / "nodes" / cluster / f"n{index}"

    def _read(self, path: Path) -> Resource | None:
        try:
            return Resource(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None

    def _agent(self, agent: Path, mode: str, folder: Path, question: str, *more: str) -> None:
        """One of the agent's modes. Raises Rejected with its own words, Unknown where it does not answer."""
        argv = [sys.executable, "-I", str(agent), mode, "--node", str(folder), *more]
        try:
            done = subprocess.run(
                argv,
                input=question,
                capture_output=True,
                text=True,
                timeout=STEP_S,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unknown(f"the tent in {folder} did not answer", f"look at {folder}/watchdog.log") from None
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise Rejected(f"the tent in {folder}: {said}", f"look at {folder}/watchdog.log")
