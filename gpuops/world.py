"""What every story needs: where we are, who we are, the ledger, the voice. Built once per command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.clock import Clock
from gpuops.output import Output
from gpuops.processes import Identity, myself
from gpuops.progress import Progress, Silent
from gpuops.signals import Signals

if TYPE_CHECKING:
    from gpuops.ledger import Ledger
    from provisioners.base import Provisioner


@dataclass
class World:
    """One command's surroundings. The ledger is opened at first use."""

    home: Path
    """gpuops' own folder, `~/.gpuops` or `$GPUOPS_HOME`."""
    owner: str
    folder: Path
    """The folder the command was typed in: the project."""
    env: Mapping[str, str]
    """The real environment joined with the known names of `.env`."""
    out: Output
    signals: Signals
    yes: bool = False
    """Questions are answered in advance."""
    clock: Clock = field(default_factory=Clock)
    progress: Progress = field(default_factory=Silent, repr=False)
    """Where stories say what they are at and what they wait for."""
    provisioners: dict[str, Provisioner] = field(default_factory=dict, repr=False)
    """Those that were asked for, by name: one connection to a provider serves the whole command."""

    @cached_property
    def ledger(self) -> Ledger:
        from gpuops.ledger import Ledger

        return Ledger.open(self.home)

    @cached_property
    def me(self) -> Identity:
        return myself()

    def provisioner(self, name: str) -> Provisioner:
        """The provisioner of that name, loaded at first use. Raises UsageError."""
        if name not in self.provisioners:
            from gpuops import registry
            from provisioners.base import Context

            self.provisioners[name] = registry.load(name, Context(owner=self.owner, home=self.home, env=self.env))
        return self.provisioners[name]
