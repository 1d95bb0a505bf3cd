"""The login node of a batch system: this machine, or one that is logged in to as a host of the user's own."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.core.errors import GpuopsError, NotSetUp, Unknown
from gpuops.core.models import Problem, Request, Resource
from provisioners.base import Context
from provisioners.batch.numbers import parse_count
from provisioners.ssh.accepted_keys import AcceptedKeys
from provisioners.ssh.host_agent import HostAgent
from provisioners.ssh.hosts import HostBook, KnownHost
from provisioners.ssh.placement import Logins

if TYPE_CHECKING:
    from gpuops.transport.connection import Connection
    from gpuops.transport.ssh import Target

HERE = "this-machine"
"""The region of what was submitted without a `--host`."""
ANSWER = '"$@" 2>&1; printf "\\nexit code %s\\n" $?'
"""Runs a command, whose words may be anything, and tells how it ended: its refusal is to be read, and no failure."""
FIND = """
command -v @PROGRAM >/dev/null 2>&1 || PATH=$PATH:$(bash -lc 'printf "\\n%s" "$PATH"' \
    </dev/null 2>/dev/null | tail -n 1)
"""
"""A login that runs a command may not have the PATH of one at a terminal, whose profile may read and print anything."""
ASK = """
command -v @PROGRAM >/dev/null 2>&1 || { echo absent; exit 0; }
"""


@dataclass(frozen=True)
class LoginNode:
    """`name`: the region of its resources; `root`: our folder there; `python`: what runs the agent."""

    name: str
    root: str
    python: str
    target: Target | None
    """How it is logged in to; None: it is this machine."""

    def document(self) -> dict[str, Any]:
        """As `Offer.data` holds it."""
        return {**vars(self), "target": self.target.document() if self.target else None}

    def way(self, ssh_folder: Path) -> dict[str, Any]:
        """How it is reached, as `Resource.data` says that."""
        reached = {"root": self.root, "python": self.python}
        if self.target is None:
            return {**reached, "connection": "process"}
        return {**reached, "connection": "ssh", "target": self.target.document(), "ssh_folder": str(ssh_folder)}


def parse_login(document: Mapping[str, Any]) -> LoginNode:
    """The login node of an offer's document, or of a resource's `data` with its region as `name`."""
    from gpuops.transport.ssh import Target

    target = document.get("target")
    return LoginNode(
        str(document["name"]),
        str(document["root"]),
        str(document["python"]),
        Target.from_document(dict(target)) if target else None,
    )


@dataclass(frozen=True)
class Answer:
    """What a command on a login node said, and how it ended."""

    code: int
    text: str

    @property
    def last_line(self) -> str:
        return (self.text.strip().splitlines() or ["it said nothing"])[-1].strip()


class LoginNodes:
    """Each login node of this command, and those that something of ours may be at (`<home>/<provider>/hosts.json`)."""

    def __init__(self, context: Context, provider: str, program: str, prelude: str) -> None:
        """`program`: a command that this machine has where it is one; `prelude`: lines of shell before each command."""
        self.ssh_folder = context.home / "ssh"
        folder = context.home / provider
        self.book = HostBook(folder / "hosts.json", context.clock)
        self.accepted = AcceptedKeys(folder / "known_hosts")
        self._context = context
        self._program = program
        self._prelude = FIND.replace("@PROGRAM", program) + prelude
        self._logins = Logins(self.ssh_folder, self.book, self.accepted)

    def problem(self, request: Request) -> Problem | None:
        """Why the request's login node cannot be used. Raises UsageError."""
        if host := _typed_host(request):
            return next(iter(self._logins.problems(host, _without_image(request))), None)
        try:
            self.log_in(request)
        except GpuopsError as error:
            return Problem(error.message, error.hint)
        return None

    def log_in(self, request: Request) -> LoginNode:
        """Raises UsageError, NodeError."""
        from gpuops.nodes import bootstrap

        if typed := _typed_host(request):
            host = self._logins.log_in(typed, _without_image(request))
            return LoginNode(host.name, self._root(host.probe.home), host.probe.python, host.target)
        probe = bootstrap.probe_machine(self._here())
        return LoginNode(HERE, self._root(probe.home), probe.python, None)

    def _root(self, home: str) -> str:
        return f"{home}/.gpuops-{self._context.owner}"

    def known(self, regions: Sequence[str]) -> list[LoginNode]:
        """Those of some regions, or all at which something of ours may be. Raises ProviderError, NodeError."""
        found = [
            LoginNode(name, host.root, host.python, host.target)
            for name in regions or self.book.names()
            if (host := self.book.get(name)) is not None
        ]
        if HERE in regions or (not regions and self._may_be_here()):
            found.append(self.log_in(Request("")))
        return found

    def _may_be_here(self) -> bool:
        """Whether this machine may have something of ours; its home says it, and no book."""
        return shutil.which(self._program) is not None and Path(self._root(str(Path.home()))).is_dir()

    def record(self, login: LoginNode) -> None:
        """Note that something of ours will be there."""
        if login.target is not None:
            self.book.record(login.name, KnownHost(login.target, login.root, login.python))

    def of(self, resource: Resource) -> LoginNode:
        """The login node of a resource, from the resource itself: it may have been forgotten."""
        return parse_login({**resource.data, "name": resource.region})

    def connection(self, login: LoginNode) -> Connection:
        return self._here() if login.target is None else self._logins.connection(login.name, login.target)

    def agent(self, login: LoginNode) -> HostAgent:
        return HostAgent(self.connection(login), login.root, login.python, self._context.home / "cache")

    def ask(self, login: LoginNode, argv: Sequence[str], question: str = "") -> Answer:
        """What a command there says on its output and its errors. Raises ConnectionLost, NodeError."""
        from gpuops.nodes import bootstrap

        words = ["sh", "-c", self._prelude + ANSWER, "sh", *argv]
        said = bootstrap.run_step(self.connection(login), words, question.encode()).decode(errors="replace")
        text, _, code = said.rpartition("\nexit code ")
        return Answer(parse_count(code, 1), text)

    def ask_site(self, login: LoginNode, script: str, title: str) -> str:
        """What a script prints that asks a batch system, `title`, about itself. Raises NotSetUp, Unknown, NodeError."""
        answer = self.ask(login, ["sh", "-c", ASK.replace("@PROGRAM", self._program) + script])
        name_one = "name the cluster's login node: --host user@address"
        if answer.text.strip() == "absent":
            where = "on this machine" if login.target is None else f"on {login.name}"
            raise NotSetUp(f"there is no {self._program} {where}", name_one)
        if answer.code:
            hint = "try again, or ask who runs the cluster"
            if login.target is None:
                hint = f"try again; is this machine no login node? {name_one}"
            raise Unknown(f"{title} does not answer: {answer.last_line}", hint)
        return answer.text

    def words(self, argv: Sequence[str]) -> list[str]:
        """A command there that hands its streams on, as `Resource.data["inside"]` holds it."""
        return ["sh", "-c", self._prelude + 'exec "$@"', "sh", *argv]

    @staticmethod
    def _here() -> Connection:
        from gpuops.transport.connection import ProcessConnection

        return ProcessConnection("this machine")


def _without_image(request: Request) -> Request:
    """An image is for what runs on a job's machines, and no wish for a container on the login node."""
    return dataclasses.replace(request, image=None)


def _typed_host(request: Request) -> str | None:
    host = request.options.get("host")
    return None if host is None else str(host)
