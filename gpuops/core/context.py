"""What every command needs: its folder, owner, ledger, provisioners, guard and output. Built once per command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core import provider
from gpuops.core.errors import LocalDisk
from gpuops.core.heartbeat import Heart
from gpuops.core.polling import Clock
from gpuops.core.processes import Identity
from gpuops.core.reporting import Progress, Reporter, Silent
from gpuops.core.signals import Signals

if TYPE_CHECKING:
    from gpuops.core.provider import LoadedProvisioner
    from gpuops.ledger.store import ClusterRow, Ledger


@dataclass(frozen=True)
class Services:
    """What lies in rooms above this one, handed in by whoever builds a Context (`gpuops.guard.services`)."""

    open_ledger: Callable[[Path, bool], Ledger]
    """The second argument: whether it is only to be read."""
    load_provisioner: Callable[[str, provider.Context], LoadedProvisioner]
    ensure_guard: Callable[[Path, ClusterRow, bool], None]
    """Starts a cluster's guard unless one works; the flag: whether its first heartbeat is waited for."""
    start_heart: Callable[[Path], Heart] = Heart
    """Lets this process's heartbeat begin in a home, before it owns anything there."""


@dataclass
class Context:
    """One command's surroundings. The ledger is opened at first use."""

    home: Path
    """gpuops' own folder, `~/.gpuops` or `$GPUOPS_HOME`."""
    owner: str
    """8 hex digits; empty where nothing was ever brought up from this home, and this command brings nothing up."""
    folder: Path
    """The folder the command was typed in: the project."""
    env: Mapping[str, str]
    """The real environment joined with the known names of `.env`, but for keys."""
    out: Reporter
    signals: Signals
    services: Services = field(repr=False)
    read_only: bool = False
    """Nothing can be written to `home`, or it is not there: the ledger is only read, and no guard is started."""
    yes: bool = False
    """Questions are answered in advance."""
    clock: Clock = field(default_factory=Clock)
    progress: Progress = field(default_factory=Silent, repr=False)
    """Shows which step is in progress and what it waits for."""
    provisioners: dict[object, LoadedProvisioner] = field(default_factory=dict, repr=False)
    """Those that were asked for, by name: one connection to a provider serves the whole command."""
    dotenv: Mapping[str, str] = field(default_factory=dict, repr=False)
    """`Settings.dotenv` of the project; a provisioner is handed what it declares as its credentials."""

    @cached_property
    def ledger(self) -> Ledger:
        return self.services.open_ledger(self.home, self.read_only)

    def ensure_guard(self, row: ClusterRow, *, waits: bool = True) -> None:
        """Start a guard for this cluster unless one works already, and wait until it does (`waits`). The first one
        keeps this command's environment. Raises LocalDisk."""
        try:
            self.services.ensure_guard(self.home, row, waits)
        except OSError as error:
            raise LocalDisk(
                f"the guard cannot be started: {error.strerror or error}",
                f"check the disk of {self.home}, and how many processes this computer still starts",
            ) from error

    def try_ensure_guard(self, row: ClusterRow) -> bool:
        """As `ensure_guard`, for a cluster that lives in any case: a failure is printed. Returns whether a guard
        works."""
        try:
            self.ensure_guard(row)
        except LocalDisk as error:
            self.out.say(f"note: {error.message}; the next command tries again, and `gpuops down {row.name}` ends it")
            return False
        return True

    @cached_property
    def me(self) -> Identity:
        """This process as the owner of clusters and runs."""
        return self.heart.process

    def for_thread(self, out: Reporter, progress: Progress) -> Context:
        """The same for another thread, with signals that are relayed to it and a ledger connection that it closes."""
        signals = Signals()
        signals.forward()
        services = replace(self.services, start_heart=lambda _home: self.heart)
        return replace(self, out=out, progress=progress, signals=signals, services=services)

    @cached_property
    def heart(self) -> Heart:
        return self.services.start_heart(self.home)

    def provisioner(self, name: str) -> LoadedProvisioner:
        """The provisioner of that name, with the first key that is found. Raises UsageError."""
        return self._load(name, name, self.env, self.dotenv)

    def provisioner_of(self, row: ClusterRow) -> LoadedProvisioner:
        """The provisioner of a cluster, with the key that it was rented with, wherever this command is typed: one of
        `.env` is that of the cluster's own project, and goes before what is exported by now. Raises UsageError.

        Of a cluster of which that was not noted, a key of `.env` goes before all that is not exported.
        """
        from gpuops.core.models import DOTENV
        from gpuops.core.settings import dotenv_values, select, with_keys

        names = self.provisioner(row.provider).credentials
        here = select(self.dotenv, names)
        keys = here if row.folder == self.folder else dotenv_values(row.folder, names)
        source = row.payer and row.payer.source
        ahead = bool(keys) and source in (None, DOTENV) and source != self._source(row.provider)
        if not ahead and keys == here:
            return self.provisioner(row.provider)
        env = with_keys(self.env, keys, names, insist=source == DOTENV) if ahead else self.env
        return self._load((row.provider, row.folder, source), row.provider, env, keys)

    def from_dotenv(self, name: str) -> LoadedProvisioner | None:
        """The provisioner with the key that the project's `.env` has for it; None where there is none, or where it is
        the first there is anyhow. Raises UsageError."""
        from gpuops.core.models import DOTENV
        from gpuops.core.settings import select, with_keys

        names = self.provisioner(name).credentials
        keys = select(self.dotenv, names)
        if not keys or self._source(name) == DOTENV:
            return None
        return self._load((name, DOTENV), name, with_keys(self.env, keys, names, insist=True), keys)

    def _source(self, name: str) -> str | None:
        """Where the first key for a provider comes from; None where it does not say. Sends no request."""
        from gpuops.core.models import Request

        payer = self.provisioner(name).payer(Request(name), 0.0)
        return payer.source if payer else None

    def _load(self, key: object, name: str, env: Mapping[str, str], dotenv: Mapping[str, str]) -> LoadedProvisioner:
        if key not in self.provisioners:
            surroundings = provider.Context(self.owner, self.home, env, dotenv, self.clock)
            self.provisioners[key] = self.services.load_provisioner(name, surroundings)
        return self.provisioners[key]
