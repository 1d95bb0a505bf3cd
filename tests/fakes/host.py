"""A host of the user's own as far as its agent's modes go, without a process: what lies in our folder there, who may
log in, and what each of the shell's words comes to."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuops.commands.doctor.examine import CHECKUP_SCRIPT
from gpuops.core.errors import ConnectionLost
from gpuops.core.models import ResourceState
from gpuops.nodes import bootstrap
from gpuops.transport.connection import Channel
from gpuops.transport.ssh import Target
from gpuops.transport.ssh.errors import AGAIN, changed
from provisioners.ssh.host_agent import END_SCRIPT, LIST_SCRIPT, NO_AGENT_ERROR, NodeRecord
from provisioners.ssh.hosts import KnownHost

NAME = "root@a"
ROOT = "/root/.gpuops-0badcafe"


def refusal(kind: str, say: str, hint: str = "") -> str:
    return json.dumps({"error": {"kind": kind, "say": say, "hint": hint}})


@dataclass
class Program:
    """One that has ended: its output, what it complained of, its exit code."""

    out: str = ""
    complaint: str = ""
    code: int = 0

    def __post_init__(self) -> None:
        self.stdin = io.BytesIO()
        self.stdout = io.BytesIO(self.out.encode())

    def wait(self, timeout: float | None = None) -> int:  # noqa: ARG002 - a channel's signature
        return self.code

    def errors(self) -> str:
        return self.complaint

    def close(self) -> None:
        """Nothing runs."""


@dataclass
class FakeHost:
    """Its state is what tests change."""

    agents: set[str] = field(default_factory=lambda: {"0123456789ab"})
    """The artefacts in our folder there."""
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The document of each node, by its folder."""
    is_up: bool = True
    shows_key: str = "ssh-ed25519 AAAA"
    takes_agents: bool = True
    tells_rest: bool = True
    """Whether its agent's `end` says what is left; older ones do not."""
    end_refusal: str = ""
    """What `end` says instead of ending a node."""
    before_init: Callable[[], None] = lambda: None
    """Called when a node is about to start."""
    programs: list[str] = field(default_factory=list)
    """The name of each program that was started there."""

    @property
    def known_host(self) -> KnownHost:
        return KnownHost(Target("a", user="root", host_keys=("ssh-ed25519 AAAA",)), ROOT, "python3")

    def connect(self, _target: Target, label: str, _folder: Path) -> FakeConnection:
        """In place of `gpuops.transport.ssh.connect`."""
        return FakeConnection(self, label)

    def put_node(self, record: NodeRecord, agent: str = "0123456789ab") -> None:
        self.nodes[record.folder] = {**vars(record), "state": record.state.value, "artefact": agent}

    def start(self, argv: Sequence[str]) -> Program:
        if argv[:2] == ["sh", "-c"]:
            script, arguments = argv[2], argv[4:]
            brought = self._run_script(script, arguments)
            brings_more = script == bootstrap.INSTALL_SCRIPT and len(arguments) > BROUGHT_BY and self.takes_agents
            return self.start(arguments[BROUGHT_BY:]) if brings_more else brought
        agent, mode = argv[2], argv[3]
        self.programs.append(mode)
        if mode == "init":
            self.before_init()
        if Path(agent).stem not in self.agents:
            return Program(complaint=f"python3: can't open file '{agent}': [Errno 2] No such file or directory", code=2)
        folder = argv[argv.index("--node") + 1]
        if mode == "init":
            self.put_node(NodeRecord("gpuops-0badcafe-lab-0", folder, ResourceState.RUNNING), Path(agent).stem)
            return Program('{"watchdog": 1, "agent": 2}')
        if folder not in self.nodes:
            said = ("no-node", f"there is no node in {folder}", "it was removed, or never started")
        elif self.nodes[folder]["state"] == "ended":
            said = ("ended", "this node has ended: it was ended", "start a new one")
        else:
            said = ("no-agent", f"no agent answers in {folder}", "end this node, then start a new one")
        return Program(complaint=refusal(*said), code=1)

    def _run_script(self, script: str, arguments: Sequence[str]) -> Program:
        if script == bootstrap.INSTALL_SCRIPT:
            self.programs.append("install")
            if not self.takes_agents:
                return Program("not put there\nmkdir: cannot create directory: Read-only file system")
            self.agents.add(Path(arguments[1]).stem)
            return Program("there\n")
        if script == LIST_SCRIPT:
            self.programs.append("nodes")
            if self.nodes and not self.agents:
                return Program(complaint=NO_AGENT_ERROR, code=1)
            return Program(json.dumps({"nodes": list(self.nodes.values())}))
        if script == END_SCRIPT:
            self.programs.append("end")
            if self.nodes and not self.agents:
                return Program(complaint=NO_AGENT_ERROR, code=1)
            if self.end_refusal:
                return Program(complaint=self.end_refusal, code=1)
            self.nodes.pop(arguments[2], None)
            rest = {"nodes": list(self.nodes.values())} if self.tells_rest else {}
            return Program(json.dumps({"ended": 0, "left": 0, **rest}))
        if script == bootstrap.CLEANUP_SCRIPT:
            self.agents.clear()
            return Program()
        is_there = Path(arguments[0]).stem in self.agents
        return Program("there\n" if is_there else '{"schema": 1}' if script == CHECKUP_SCRIPT else "")


BROUGHT_BY = 4
"""Words of INSTALL_SCRIPT before those of what it starts."""


@dataclass
class FakeConnection:
    host: FakeHost
    label: str

    def open(self, argv: Sequence[str], early: bytes = b"") -> Channel:  # noqa: ARG002 (a connection's signature)
        if not self.host.is_up:
            raise ConnectionLost(f"{self.label} refuses connections on this port", AGAIN)
        if self.host.shows_key not in self.host.known_host.target.host_keys:
            raise changed(self.host.known_host.target, "SHA256:another")
        return self.host.start(list(argv))

    def close(self) -> None:
        """Nothing is open."""
