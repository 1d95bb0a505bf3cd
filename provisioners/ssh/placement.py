"""Logging in to the hosts that a request names, once each, and which node is on which host."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.core.errors import GpuopsError, NodeError, UsageError
from gpuops.core.format import plural
from gpuops.core.models import Problem, Request
from gpuops.core.typed_paths import typed_path
from gpuops.nodes.gpu_shares import divide
from provisioners.ssh.accepted_keys import AcceptedKeys
from provisioners.ssh.container_probe import ContainerFacts, container_problems, image_file_problems, probe_containers
from provisioners.ssh.container_spec import APPTAINER, ENGINES, HostLimits, full_name, wanted_engine, wants_containers
from provisioners.ssh.hosts import HostBook

if TYPE_CHECKING:
    from gpuops.nodes.bootstrap import MachineProbe
    from gpuops.transport.connection import Connection
    from gpuops.transport.ssh import Target


def refuse_rental_flags(request: Request, why: str, hint: str, but: Sequence[str] = ()) -> None:
    """Raises UsageError for flags that choose a machine to rent, naming all of them. `why`: `these hosts are yours`;
    `but`: flags that are not among them here."""
    flags = [
        flag
        for flag, value in (
            ("--gpu-type", request.gpu_type),
            ("--gpu-mem", request.gpu_mem),
            ("--region", request.region),
            ("--image", request.image),
        )
        if value is not None and flag not in but
    ]
    if flags:
        names, verb = " and ".join(flags), "says" if len(flags) == 1 else "say"
        raise UsageError(f"{names} {verb} which machine to rent, and {why}", f"leave out {names}{hint}")


@dataclass(frozen=True)
class Host:
    """A host that was logged in to: `name` is the region of its resources."""

    name: str
    target: Target
    probe: MachineProbe
    containers: ContainerFacts | None = None
    """Where the nodes are to be in containers."""


class UnconfirmedKey(NodeError):
    """A host whose key only the user can confirm."""


class Logins:
    """Each host of this command, logged in to once. `folder`: for names and sockets, beside the ledger."""

    def __init__(self, folder: Path, book: HostBook, accepted: AcceptedKeys) -> None:
        self.folder = folder
        self._book = book
        self._accepted = accepted
        self._logged_in: dict[str, Host] = {}
        self._shown_keys: dict[str, tuple[str, ...]] = {}
        """Keys that the user was shown: the host must show the same when they are accepted."""
        self._open: dict[str, Connection] = {}
        self._lock = threading.Lock()

    def problems(self, typed: str, request: Request) -> list[Problem]:
        """Why a host cannot be used, as data. Raises UsageError."""
        try:
            host = self.log_in(typed, request)
        except UsageError:
            raise
        except UnconfirmedKey as error:
            return [Problem(error.message, error.hint, settle="accept-new")]
        except GpuopsError as error:
            say = error.message if typed.removesuffix(":22") in error.message else f"{typed}: {error.message}"
            return [Problem(say, error.hint)]
        if request.options.get("container") == APPTAINER:
            try:
                return image_file_problems(self.connection(host.name, host.target), host.name, request.image or "")
            except NodeError as error:
                return [Problem(error.message, error.hint)]
        if host.containers is None:
            return []
        return container_problems(host.name, host.containers, wanted_engine(request), request.image or "")

    def logged_in(self, typed: Sequence[str]) -> list[Host]:
        """Those that were logged in to in this command."""
        return [self._logged_in[host] for host in typed if host in self._logged_in]

    def log_in(self, typed: str, request: Request) -> Host:
        """Log in, once for the whole command, and read what the host has. Raises UsageError, NodeError."""
        if typed in self._logged_in:
            return self._logged_in[typed]
        from gpuops.nodes import bootstrap
        from gpuops.transport import ssh

        target = ssh.resolve_target(typed, identity=_identity_path(request))
        name = host_name(target)
        target = dataclasses.replace(target, host_keys=self._trusted(name, target, request))
        connection, contained = self.connection(name, target), wants_containers(request)
        probe = bootstrap.probe_machine(connection, needs_python=not contained)
        facts = None
        if contained:
            facts = probe_containers(connection, wanted_engine(request), request.image or "", probe.gpus)
        host = Host(name, target, probe, facts)
        self._logged_in[typed] = host
        return host

    def _trusted(self, name: str, target: Target, request: Request) -> tuple[str, ...]:
        """The host's own keys, as far as they are trusted: by the user's known_hosts, by the first login of a cluster
        that is still there, or because the user accepts them now or has before. Raises NodeError, UnconfirmedKey."""
        from gpuops.transport import ssh

        known_host = self._book.get(name)
        met = known_host.target.host_keys if known_host else ()
        known = target.host_keys or met or self._accepted.of(target)
        shown = ssh.scan_host_key(target, prefer=known)
        agreed = tuple(key for key in shown if key in known)
        if agreed:
            return agreed
        fingerprint_shown = ssh.fingerprint(shown[0])
        if known:
            command = (
                f"ssh-keygen -R '{ssh.known_hosts_name(target.host, target.port)}'"
                if target.host_keys
                else f"gpuops reap --forget {name}"
            )
            raise NodeError(
                f"the host key of {name} is not the one that is known: it shows {fingerprint_shown}, expected is "
                f"{ssh.fingerprint(known[0])}; somebody may stand in between",
                f"if the host was set up anew: {command}, then try again",
            )
        if shown[0] in ssh.revoked_keys(target.host, target.port):
            raise NodeError(f"the key that {name} shows, {fingerprint_shown}, was revoked", "do not log in there")
        if request.options.get("accept-new") and (not self._shown_keys or self._shown_keys.get(name) == shown):
            self._accepted.add(target, shown)
            return shown
        self._shown_keys[name] = shown
        raise UnconfirmedKey(
            f"{name} is an unknown host, its key is {fingerprint_shown}",
            "compare that with the host's own: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub, then add --accept-new",
        )

    def connection(self, name: str, target: Target) -> Connection:
        """The one connection of this provisioner to a host."""
        from gpuops.transport import ssh

        with self._lock:
            if name not in self._open:
                self._open[name] = ssh.connect(target, name, self.folder)
            return self._open[name]


def _identity_path(request: Request) -> str | None:
    identity = request.options.get("identity")
    if identity is None:
        return None
    path = typed_path("--identity", str(identity), Path())
    if path.suffix == ".pub":
        raise UsageError(
            f"--identity {identity} is the public half of a key",
            f"name the private one: {str(identity)[: -len(path.suffix)]}",
        )
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise UsageError(f"--identity {identity}: {what}", "name the private key")
    return str(path)


def host_name(target: Target) -> str:
    """What a host is called in the ledger and in messages: `root@10.0.0.5`, with the port unless it is 22."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{target.user}@{host}" + (f":{target.port}" if target.port != 22 else "")


def typed_hosts(request: Request) -> list[str]:
    return [*(request.options.get("host") or ()), *(request.options.get("hosts") or ())]


@dataclass(frozen=True)
class NodePlace:
    """One node of an offer: the host it will be on, and its share of that."""

    host: str
    target: Target
    home: str
    """The login's home folder there."""
    python: str
    all_gpus: int
    """GPUs of the whole host."""
    gpus: Sequence[str] | None
    """The node's own, by their indices; None: all of them."""
    cores_share: float
    engine: str = ""
    """Where the node is in a container: what runs it, its image, and how."""
    image: str = ""
    limits: HostLimits | None = None

    @property
    def region(self) -> str:
        """What its host is called in the ledger: nodes in containers have a root, and so an entry, of their own."""
        return f"{self.host}+{self.engine}" if self.engine else self.host

    @property
    def gpu_count(self) -> int:
        return self.all_gpus if self.gpus is None else len(self.gpus)

    def document(self) -> dict[str, object]:
        """As `Offer.data` holds it."""
        limits = dataclasses.asdict(self.limits) if self.limits else None
        return {**vars(self), "target": self.target.document(), "limits": limits}


def parse_place(document: Mapping[str, Any]) -> NodePlace:
    from gpuops.transport.ssh import Target

    limits = HostLimits(**document["limits"]) if document.get("limits") else None
    return NodePlace(**{**document, "target": Target.from_document(dict(document["target"])), "limits": limits})


def host_of(region: str) -> str:
    """The host of a region (`NodePlace.region`)."""
    return next((region.removesuffix(f"+{engine}") for engine in ENGINES if region.endswith(f"+{engine}")), region)


def place_nodes(
    hosts: Sequence[Host], nodes: int, gpus: int | None, image: str = ""
) -> tuple[list[NodePlace], list[str]]:
    """Which node is on which host, with its share of the GPUs and cores, and sentences that the user should know.

    Nodes of one host are neighbours in rank order. Raises Rejected where GPUs are wanted that are not there.
    """
    base, more = divmod(nodes, len(hosts))
    places: list[NodePlace] = []
    notes: list[str] = []
    for position, host in enumerate(hosts):
        count = base + (position < more)
        contained = _container_of(host, image)
        gpu_ids = [str(index) for index in range(host.probe.gpus)]
        shares, note = divide(gpu_ids, count, gpus, host.name)
        if note:
            notes.append(note)
        for share in shares:
            places.append(
                NodePlace(
                    host=host.name,
                    target=host.target,
                    home=host.probe.home,
                    python=host.probe.python,
                    all_gpus=host.probe.gpus,
                    gpus=None if count == 1 and gpus is None else share,
                    cores_share=1 / count,
                    **contained,
                )
            )
    if nodes > len(hosts):
        here = plural(len(hosts), "host")
        notes.append(f"{nodes} nodes on {here}: virtual nodes, which share cores, memory and disk")
    return places, notes


def _container_of(host: Host, image: str) -> dict[str, Any]:
    """What a node's place says of its container; nothing where it is on the host itself."""
    facts = host.containers
    if facts is None:
        return {}
    name = image if facts.has_image else full_name(facts.engine, image)
    return {"engine": facts.engine, "image": name, "limits": facts.limits}


def refuse_doubles(hosts: Sequence[Host], nodes: int) -> None:
    """Raises UsageError where one machine was named twice, by one name or by two."""
    names = [host.name for host in hosts]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{doubled[0]} is named twice", f"name it once; --nodes {nodes} makes virtual nodes on it")
    name_by_machine: dict[str, str] = {}
    for host in hosts:
        twin = name_by_machine.setdefault(host.probe.machine, host.name) if host.probe.machine else host.name
        if twin != host.name:
            raise UsageError(
                f"{twin} and {host.name} are one machine", f"name it once; --nodes {nodes} makes virtual nodes"
            )
