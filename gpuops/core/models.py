"""Clusters as plain data: what the user asked for, what a provider offers, what exists, and until when.

Everything here is frozen and JSON-able (`dataclasses.asdict`), so that a plan can be printed,
stored in the ledger and compared in a test. Money is in US dollars, prices in $/h, times are
absolute UTC seconds since the epoch (`float`) unless a name says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

MACHINE = "machine"
"""The kind of a resource that a node may be on; of the others only their provider knows what they are for."""
NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
"""What a cluster, a run and a workload may be called."""


class ResourceState(StrEnum):
    """What a resource may be. A provider may give the word itself, so states are compared by `==`."""

    NOT_DESCRIBED = ""
    STARTING = "starting"
    RUNNING = "running"
    LEAVING = "leaving"
    """The same as ENDED for money, since it cannot come back and costs nothing more, but it is still listed, and what
    serves it cannot go before it has."""
    ENDED = "ended"
    """It will never run again and costs nothing."""
    UNKNOWN = "unknown"
    """Also a machine that is merely stopped, and whose disk still costs."""

    @classmethod
    def parse(cls, word: str) -> ResourceState:
        """The state of that name; UNKNOWN for a word that is none."""
        try:
            return cls(word)
        except ValueError:
            return cls.UNKNOWN


COSTLESS = (ResourceState.LEAVING, ResourceState.ENDED)


class MachineStatus(Enum):
    """Whether a machine still runs, and if not, who ended it; derived from the result of `describe`."""

    RUNNING = "running"
    """It runs, or is being started; also where its provider does not know."""
    TERMINATED = "terminated"
    """It has ended or will never be ready, for a reason that would end another machine as well."""
    PREEMPTED = "preempted"
    """Its provider took it back."""
    STOPPED = "stopped"
    """It will never be ready, or was stopped, for a reason that lies with this very machine."""
    VANISHED = "vanished"
    """It has ended, and its provider does not say why."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing runs there any more; the machine may still be listed, and cost money."""
        return self is not MachineStatus.RUNNING

    @property
    def is_replaceable(self) -> bool:
        """Whether neither the user nor the image caused this end, so that another machine may succeed."""
        return self in (MachineStatus.PREEMPTED, MachineStatus.STOPPED, MachineStatus.VANISHED)


@dataclass(frozen=True)
class Request:
    """What the user asked for. `gpus` is per machine; None means all there are."""

    provider: str
    nodes: int = 1
    gpus: int | None = None
    gpu_type: str | None = None
    gpu_mem: int | None = None
    """The least memory of each GPU, in GB as makers count it: an A10G of 22888 MiB has 24."""
    spot: bool = False
    region: str | None = None
    max_price: float | None = None
    """$/h of all nodes together. The core keeps it: what is offered is not filtered by it, so that the cheapest that
    fits can be named."""
    image: str | None = None
    timeout_min: float = 20.0
    max_hours: float | None = None
    """For how long they are wanted at most. The core's lease keeps it; a provider may have to be told before."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The provider's own options (`Provisioner.options`), by name."""
    wait_s: float | None = None
    """How long the core searches while no offer is available. None: half an hour for replacements of preempted machines
    (`search.REPLACEMENT_SEARCH_S`), else it does not wait. Where machines are queued for: how long, else a day."""


@dataclass(frozen=True)
class Price:
    """One line of an offer's price: `per_hour` $ for `what`."""

    what: str
    per_hour: float


DATA = "GPUOPS_DATA"
"""Tells a program where its data are."""
DOTENV = ".env"
"""The source of a key that the project's `.env` holds."""


@dataclass(frozen=True)
class Payer:
    """Who pays for what is rented."""

    account: str
    """The account as its owner knows it: `alice@example.com`, `AWS account 123456789012 as alice`; empty: not known."""
    source: str
    """Where the key to it came from: `RUNPOD_API_KEY`, `profile work`, `~/.runpod/config.toml`, DOTENV."""

    @classmethod
    def parse(cls, document: object) -> Payer | None:
        """The payer of a JSON form; None for what is none."""
        if not isinstance(document, Mapping) or {*document} != {"account", "source"}:
            return None
        return cls(**document)

    def __str__(self) -> str:
        whose = f"paid by {self.account}" if self.account else "account unknown"
        return whose + (f" (key from {self.source})" if self.source else "")


@dataclass(frozen=True)
class Offer:
    """One concrete way to satisfy a request; all its nodes together."""

    provider: str
    id: str
    say: str
    """What it is, for people: `2 local nodes, 1 core each`."""
    nodes: int
    gpus: int
    """GPUs per node."""
    region: str = ""
    prices: Sequence[Price] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """The provider's own, given back to `create`. The core reads, where it is there: `columns` (heading to text, for
    the table), `ends` (UTC seconds: when its machines end at the latest, whatever the lease says), `why`
    (why the first is first), `queue_s` (how long its machines may be `queued`), `idle_min` (their idle end without
    `--idle`), `place` (where its machines would be: once such were taken back, offers
    elsewhere come first), `machine` (what each machine has: `gpuops.offers.machine_facts`) and `quota` (its name: where
    QuotaExceeded is raised for one offer, others under the same quota are not asked for, and the rest still are)."""
    notes: Sequence[str] = ()
    """Sentences the user should read before accepting (`2 nodes but 1 GPU: ranks run on CPU`)."""

    @property
    def queue_s(self) -> float:
        """How long its machines may be `queued`."""
        return float(self.data.get("queue_s") or 0.0)

    @property
    def per_hour(self) -> float:
        """In $, rounded: a sum of binary fractions may be a little more than the limit that equals it."""
        return round(sum(price.per_hour for price in self.prices), 9)


@dataclass(frozen=True)
class Problem:
    """One finding of `preflight`: what is wrong, whether it stops the command, and what to do."""

    say: str
    hint: str
    fatal: bool = True
    settle: str = ""
    """The provider's own yes-or-no option by which the user may settle it: asked where a terminal can answer."""
    note: bool = False
    """Something to know (whose account this is), and nothing is wrong: it stops no command, whatever `fatal` says."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fatal", self.fatal and not self.note)


@dataclass(frozen=True)
class SiteFact:
    """What a provider tells of itself, for `gpuops doctor`."""

    what: str
    """The subject, for programs; each is a line of docs/doctor.md."""
    say: str
    hint: str = ""


@dataclass(frozen=True)
class MachineEnd:
    """What a provider says of a machine's end."""

    say: str = ""
    preempted: bool = False
    by: str = ""
    """The provider as people call it; empty where it gives no name."""


@dataclass(frozen=True)
class Resource:
    """Anything of ours at a provider. A machine is a resource of kind `machine`.

    `data` (JSON-able) holds what the provider needs to find it again and, for a machine from
    `running` on, how it is reached:

    - `connection`: `process` (the node is this computer) or `ssh`.
    - `root`: the folder for gpuops on the node. The agent is `<root>/agent/<artefact>.pyz`, the node
      itself `<root>/<cluster>/n<index>`, where `init` has made it (docs/protocol.md).
    - `python`: the interpreter there that runs the agent. `artefact`: stem of `Intent.agent`.
    - `token`: the token of its `will`. What tells one is this cluster's only where it begins with the
      cluster's own: a machine of an earlier attempt with the same name is not taken for it.
    - `gpus`: indices this node may use, None (the default) for all; `cores_share`: fraction of the
      machine's cores, default 1, for nodes that share a machine.

    - `inside`: where the node is within what `connection` reaches, the words of a command there that starts a program
      in it, before the program's own: `["docker", "exec", "-i", NAME]`. `inside_modes`: the agent's modes that are
      started so, where all else runs beside, on the same files (a batch system's login node). `inside_shell` and
      `inside_terminal`: the same for a person's command, without and with a terminal. `inside_forward`: what holds one
      of the node's ports open there, at the socket or port and for the port that are behind it, until its input ends.
    - `within`: where the agent is on the machine and only what a run starts is in an image: the words that start a
      program there (`["apptainer", "exec", IMAGE]`).

    By `ssh` also `target`: how to log in, as `gpuops.transport.ssh.Target.document` gives it (`host`, `port`,
    `user`, `identities` as paths on this computer, `host_keys` as `ssh-ed25519 AAAA…`; without a host
    key nothing is ever logged in to), `ssh_folder`: `<Context.home>/ssh`, where names and sockets are
    kept, and `revives`: True where a node without its agent may be started again (it was rebooted).

    A machine by `ssh` without `artefact` is no node yet: gpuops logs in and makes it one
    (`gpuops.nodes.host_key_handover`), which finds out `root` (else `<home>/.gpuops-<owner>`), `python` and
    `artefact`. What it found is kept under what `describe` says later. For such a machine there may also be:

    - `urls`: addresses at which its provider shows what listens there, for people: `up` and `status` tell them.
    - `throwaway_key`: True where the private half of its host key went through the provider; it is replaced.
    - `boot_watch`: the folder of a watchdog that starts with the machine: `pid` or `beat`, `end` (absolute UTC
      seconds, or `none`) and `revive`, which it runs while the node's own watchdog is not there (docs/protocol.md).
    - `scratch`: the folder where a local disk is mounted on machines that have one: data and environments go there
      (`gpuops.agent.files.local_disk`). For rented machines alone.
    - `env`: variables for every process of a run there, which the user's own go before.
    - `notices`: `{"kind", "url"}`, where the machine hears that its provider takes it back (docs/protocol.md).
    - `reclaimed`: True of one that ends because its provider took it back, also before it is ready; `by`: the
      provider as people call it; `why_ended`: that, in words.
    - `ends_itself`: False where this one cannot be trusted to, though its provider's others can.
    - `machines`, of what is no machine: how many it stands for (a provider's own cluster). `create` may leave them out
      until their provider has numbered them; `list_owned` then has them by their marks, and gpuops waits for that.
    - `queued`: True while it waits at its provider for its turn, which is no part of the time to get ready.
    - `left`: True of one that has ended, and whose node's files are there all the same, beside it (`inside_modes`).
    - `ends`: when it ends by itself, whatever the lease says (UTC seconds), once it is ready.
    - `phase`: what it is at until it is ready, in words; `hopeless`: why it will never be; `stopped`: True where that
      lies with the machine and not with its image, so that another one may do. `hopeless` says nothing of a node that
      is `running`.

    `queued`, `phase`, `hopeless`, `stopped`, `reclaimed`, `by` and `why_ended` are of the present: what `describe`
    leaves out is no longer so. Of all else what was known stays.
    """

    kind: str
    id: str
    region: str
    name: str
    """Our mark, as `Intent.mark` gives it; where names may be doubled, it is still this one."""
    bills: bool
    parent: str = ""
    state: ResourceState = ResourceState.NOT_DESCRIBED
    """A provider's own words go to `data`."""
    address: str = ""
    port: int = 0
    private_address: str = ""
    per_hour: float = 0.0
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Resource:
        """The resource of a JSON form. Raises TypeError for what is none."""
        return cls(**{**document, "state": ResourceState.parse(document.get("state", ""))})

    @property
    def key(self) -> tuple[str, str]:
        """What no other resource of its provider has: kind and id."""
        return self.kind, self.id

    @property
    def token(self) -> str:
        """That of its `will`, as it tells it; empty where it tells none."""
        return str(self.data.get("token") or "")

    @property
    def is_machine(self) -> bool:
        return self.kind == MACHINE

    @property
    def status(self) -> MachineStatus:
        """Of a machine, as last described."""
        if self.data.get("reclaimed"):
            return MachineStatus.PREEMPTED
        if self.data.get("stopped"):
            return MachineStatus.STOPPED
        if self.state in COSTLESS and not self.data.get("why_ended"):
            return MachineStatus.VANISHED
        # What was said of the start of a machine is over once it is a node and runs.
        hopeless = self.data.get("hopeless") and not (self.data.get("artefact") and self.state == ResourceState.RUNNING)
        if self.state in COSTLESS or hopeless:
            return MachineStatus.TERMINATED
        return MachineStatus.RUNNING

    @property
    def why_ended(self) -> str:
        """Why a machine ended, in its provider's words; empty where it does not say."""
        default = "its provider took it back" if self.status is MachineStatus.PREEMPTED else ""
        return str(self.data.get("why_ended") or default)

    @property
    def end(self) -> MachineEnd | None:
        """What its provider says of a machine's end; None where it says nothing."""
        if self.status is MachineStatus.PREEMPTED:
            return MachineEnd(self.why_ended, preempted=True, by=str(self.data.get("by") or ""))
        return MachineEnd(self.why_ended) if self.why_ended else None


@dataclass(frozen=True)
class Intent:
    """What the ledger has committed to disk before a provider is asked for anything."""

    owner: str
    cluster: str
    token: str
    """Client token (at most 48 letters, digits and dashes), fresh for each call of `create`. A call at the
    provider that is made several times derives its own from it: `<token>-<part>`."""
    boot_deadline: float
    """Absolute UTC end of the boot lease; travels with the create call."""
    agent: Path
    """The agent artefact (a zipapp) on this computer."""
    made: Sequence[Resource] = ()
    """What earlier calls of `create` have made of this very offer, machines last and in node order: it is not made
    again. Empty but for a provisioner with `launches_apart_s`."""

    def mark(self, part: int | str) -> str:
        """The name of one resource: a node's index, or a word without a dash (`keys`) for what serves them all."""
        return f"gpuops-{self.owner}-{self.cluster}-{part}"


class Journal(Protocol):
    """How a provisioner tells the ledger what it is about to do and what came of it.

    Both calls return only when the line is on disk. `will` before, `got` after each effect; to be
    called from the thread that `create` was called in. `will` raises Interrupted when another
    command has begun to end this cluster: let it pass, and create nothing more.
    """

    def will(self, kind: str, mark: str, token: str, region: str) -> None: ...

    def got(self, resource: Resource) -> None: ...


@dataclass(frozen=True)
class Option:
    """A provider's own flag: appears in `up NAME --help` and in the request's `options`."""

    name: str
    """As typed, without dashes: `host`."""
    help: str
    type: Literal["str", "int", "float", "bool", "path", "list", "lines"] = "str"
    """`list`: may be given several times; `lines`: the file whose lines are the list, `#` begins a comment. With
    `counts` that may be a host file of PBS, MPI or DeepSpeed: slots are left out, a machine named twice is one."""
    default: Any = None
    counts: bool = False
    """Each value stands for a machine: without `--nodes` there are as many nodes."""


@dataclass(frozen=True)
class Lease:
    """Until when a cluster may live. None means: no such end."""

    hard_end: float | None = None
    idle_s: float | None = None
    money_end: float | None = None
    """When the spending limit is reached at the present price; a hard end by another name."""

    @property
    def end(self) -> float | None:
        ends = [end for end in (self.hard_end, self.money_end) if end is not None]
        return min(ends) if ends else None
