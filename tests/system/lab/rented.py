"""What the scenarios about rented machines need of a provider, so that each is written once and played at every one.

    with Lab(folder / "lab") as lab, RentedRunPod(folder, lab) as cloud, cloud.tenant() as tenant:
        tenant.shell.run("up", cloud.name, "--yes", *cloud.machine_flags)
        (machine,) = cloud.machines(tenant)

`RentedCloud` is a fake provider whose machines are machines of a lab, `RentedMachine` one of them. rented_aws.py,
rented_runpod.py and rented_vast.py say what is different there, rented_container.py what is alike in the last two;
test_deadmen, test_secrets and test_crash_{rented,replaced} use them.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from tests.system.chaos.hits import Saboteur
from tests.system.chaos.tenant import Tenant
from tests.system.lab.hosts import Lab, Place
from tests.system.lab.laptop import Laptop


class Boot(Enum):
    """How far the next machine comes."""

    UNREACHABLE = "it boots, and nobody can log in before its laptop is gone"
    NEVER = "it bills, and no process ever runs in it"
    FAILS = "the command that came with it fails"
    HANGS = "its boot hangs early"


class RentedMachine(ABC):
    """A machine of a lab as the one who rents it sees it."""

    watch_folder: ClassVar[str]
    """Where the dead-man that came with the machine and the node's own watchdog meet."""

    @property
    @abstractmethod
    def place(self) -> Place:
        """Where it is in the lab; `pid` is the number of its first process as this computer counts, 0 while down."""

    @property
    @abstractmethod
    def disk(self) -> Path:
        """What it has written to its disk, as seen from this process."""

    @property
    @abstractmethod
    def root(self) -> Path:
        """All of its files, what lies in memory too, as seen from this process."""

    @property
    @abstractmethod
    def bills(self) -> bool: ...

    @property
    @abstractmethod
    def bill_ended(self) -> float:
        """When it stopped billing (UTC seconds)."""

    @property
    @abstractmethod
    def has_booted(self) -> bool:
        """Whether the dead-man that came with it runs."""

    @property
    @abstractmethod
    def known_to_provider(self) -> str:
        """What the provider was sent about it: a machine can ask its provider for that."""

    @property
    @abstractmethod
    def console(self) -> str:
        """What it printed as it booted, as the provider keeps it."""

    @property
    @abstractmethod
    def first_host_key(self) -> str:
        """The public line of the host key that it was sent through the provider."""

    @abstractmethod
    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in it as root, past its sshd, to its end."""

    @abstractmethod
    def processes(self) -> list[str]:
        """The command lines of all that runs in it."""

    @abstractmethod
    def restart(self) -> None:
        """Start its system anew on the same disk. Returns once that is up, or the machine has stopped billing."""

    @abstractmethod
    def end_boot_watch(self) -> None:
        """End the dead-man that came with it."""

    @property
    def end_file(self) -> str:
        return f"{self.watch_folder}/end"

    def agent_modes(self) -> set[str]:
        """The modes in which our agent runs there."""
        lines = [line.split() for line in self.processes()]
        return {words[at + 1] for words in lines for at, word in enumerate(words[:-1]) if word.endswith(".pyz")}


class RentedCloud(ABC):
    """A fake provider in a lab. Close it before the lab; it raises where anything is left that bills."""

    name: ClassVar[str]
    machine_flags: ClassVar[tuple[str, ...]]
    """What `up`, `run` and `train` take so that one machine is rented."""
    boot_lease: ClassVar[tuple[str, str]]
    """A lease by which a machine that is not yet a node ends after a minute and a half."""
    node_lease: ClassVar[tuple[str, str]]
    """As short a lease as leaves time for a node to come up and for something to be killed there."""
    revival_lease: ClassVar[tuple[str, str]]
    """The same where a node must be started again besides."""
    ends_without_service: ClassVar[bool]
    """Whether a machine can end its bill without reaching the provider's API."""

    fake: Any
    """The service itself: FakeAWS, FakeRunPod, FakeVast."""

    def __init__(self, folder: Path, lab: Lab) -> None:
        self.lab = lab
        self._folder = folder
        self._numbers = itertools.count()
        self.fake = self._start(folder / self.name)
        self._saboteur = self._make_saboteur()

    @staticmethod
    @abstractmethod
    def why_not() -> str | None:
        """One reason why its machines cannot be had on this computer; None when they can."""

    @abstractmethod
    def next_boot(self, boot: Boot) -> None:
        """Decide how far the next machine comes. Raises KeyError where this provider has no such mishap."""

    @abstractmethod
    def machines(self, tenant: Tenant) -> list[RentedMachine]:
        """All that somebody ever rented."""

    @abstractmethod
    def lift_limits(self) -> None:
        """Nobody waits for a machine to shut down, and one who rents keeps no other from renting."""

    @abstractmethod
    def what_bills(self) -> list[str]:
        """All that is left in the account."""

    @abstractmethod
    def _start(self, folder: Path) -> Any:
        """The fake service, its machines in the lab."""

    @abstractmethod
    def _make_saboteur(self) -> Saboteur:
        """The one who hits a process at a request to this service."""

    @abstractmethod
    def _tenant(self, shell: Laptop) -> Tenant: ...

    @contextmanager
    def tenant(self) -> Iterator[Tenant]:
        """Somebody with a home and a laptop of their own; as many as wanted, at the same time, too."""
        project = self._folder / f"tenant{next(self._numbers)}"
        project.mkdir(parents=True)
        home = Path(tempfile.mkdtemp(prefix="gpuops-"))  # short: sockets lie in it
        env = {**self.fake.env, "HOME": str(home)}
        shell = Laptop(home, project, env=env, prefix=self.lab.enter, lab=self.lab)
        try:
            yield self._tenant(shell)
        finally:
            shell.end()
            shutil.rmtree(home, ignore_errors=True)

    def __enter__(self) -> RentedCloud:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        left = self.what_bills()
        self.fake.close()
        assert error or not left, left
