"""Hosts of the user's own, reached by SSH. What is made there is a folder, and what is removed is that folder.

`<home>/.gpuops-<owner>/<cluster>/n<i>` on a host is a node. The folder alone makes it ours, so an interrupted
creation is found by it. With `--image` a node is a container (`container_spec`), with its folder under
`<home>/.gpuops-<owner>-<engine>`; either of them is found without the other. Which hosts to ask, and the host key of
the first login to each, is kept in a file on this computer (`ssh/hosts.json`) while something of ours may be there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from gpuops.agent.workers import WORKERS
from gpuops.core.account_variables import OURS
from gpuops.core.errors import (
    ConnectionLost,
    NodeError,
    NodeRefused,
    ProviderError,
    Rejected,
    Unknown,
    UsageError,
)
from gpuops.core.format import plural
from gpuops.core.models import MACHINE, Intent, Journal, Offer, Option, Problem, Request, Resource, ResourceState
from gpuops.core.parallel import on_each
from provisioners.base import CONTRACT, Context
from provisioners.ssh.accepted_keys import AcceptedKeys
from provisioners.ssh.container_host import ContainerHost, FoundNode
from provisioners.ssh.container_spec import (
    APPTAINER,
    ContainerSpec,
    check_image,
    parse_spec,
    wanted_engine,
    within_words,
)
from provisioners.ssh.host_agent import HostAgent, NodeRecord, join_lists
from provisioners.ssh.hosts import HostBook, KnownHost
from provisioners.ssh.placement import (
    Logins,
    NodePlace,
    host_of,
    parse_place,
    place_nodes,
    refuse_doubles,
    refuse_rental_flags,
    typed_hosts,
)

if TYPE_CHECKING:
    from gpuops.transport.connection import Connection
from provisioners.ssh.machines import contained_resource, known_host_of, node_resource, resource_id

T = TypeVar("T")

MIN_BOOT_LEASE_S = 1.0
"""A node whose boot deadline has passed still gets this long, and then ends itself."""
DESTROY_WAIT_S = 2.0
"""How long `destroy` waits for its threads; the core then lists again, which starts a Python on every host."""
ABANDONED_S = 900.0
"""A host without nodes is tidied and forgotten after this long: until then, a command may still create one there."""


class SshProvisioner:
    """The contract for hosts of the user's own."""

    contract = CONTRACT
    name = "ssh"
    capabilities: Mapping[str, bool | str] = {
        "multinode": True,
        "spot": "these hosts are yours, so there is no spot price",
        "self_destruct": "these hosts are yours: a lease ends runs and processes, never the host",
        "host_keys": True,
        "rented": "these hosts are yours",
        "shares_disk": "a host has its own disk",
    }
    options: Sequence[Option] = (
        Option(
            "host", "A host: user@address:port, or a name from your ~/.ssh/config. Repeatable.", "list", counts=True
        ),
        Option("hosts", "A file with a host a line, such as $PBS_NODEFILE or a hostfile of MPI.", "lines", counts=True),
        Option("identity", "The private key to log in with.", "path"),
        Option("accept-new", "Trust the keys of unknown hosts.", "bool", default=False),
        Option("container", "What runs --image there: docker, podman or apptainer. Without: docker, else podman."),
    )
    examples: Sequence[str] = (
        "--host alice@10.0.0.5",
        "--name lab --host alice@10.0.0.5 --host alice@10.0.0.6",
        "--hosts hostfile --image nvcr.io/nvidia/pytorch:25.01-py3",
    )
    credentials: Sequence[str] = OURS["ssh"].credentials
    surroundings: Sequence[str] = OURS["ssh"].surroundings
    settle_s = 0.0
    gone_s = 60.0
    ends_only_its_own = True

    def __init__(self, context: Context) -> None:
        self.context = context
        folder = context.home / "ssh"
        self._book = HostBook(folder / "hosts.json", context.clock)
        self._accepted = AcceptedKeys(folder / "known_hosts")
        self._logins = Logins(folder, self._book, self._accepted)
        self._ending: dict[str, _Ending] = {}

    # Before anything is made.

    def preflight(self, request: Request) -> Sequence[Problem]:
        refuse_rental_flags(request, "these hosts are yours", "", but=("--image",))
        wanted_engine(request)
        if request.image is not None:
            check_image(request.image, wanted_engine(request))
        typed = typed_hosts(request)
        if not typed:
            raise UsageError("no host was named", "add --host user@address, once for each host")
        return [
            problem for found in on_each(lambda name: self._logins.problems(name, request), typed) for problem in found
        ]

    def offers(self, request: Request) -> Sequence[Offer]:
        """One offer: these hosts. More nodes than hosts are virtual ones, each with its share of the GPUs."""
        if request.image is None and (engine := wanted_engine(request)):
            raise UsageError(f"--container {engine} runs an image, and none was named", "add --image NAME")
        logged_in = [self._logins.log_in(typed, request) for typed in typed_hosts(request)]
        hosts, spare = logged_in[: request.nodes], logged_in[request.nodes :]
        refuse_doubles(hosts, request.nodes)
        places, notes = place_nodes(hosts, request.nodes, request.gpus, request.image or "")
        if spare:
            notes.append(f"not used, since --nodes is {request.nodes}: {', '.join(host.name for host in spare)}")
        gpus = min(place.gpu_count for place in places)
        names = ", ".join(dict.fromkeys(place.host for place in places))
        what = f"{plural(request.nodes, 'node')} in {request.image}" if request.image else plural(request.nodes, "node")
        say = f"{what} on {names}"
        data: dict[str, object] = {"places": [place.document() for place in places]}
        if wanted_engine(request) == APPTAINER:
            data["image_file"] = request.image
        return [Offer("ssh", "hosts", say, request.nodes, gpus, notes=tuple(notes), data=data)]

    def standing(self, request: Request) -> Sequence[Resource]:
        """The named hosts that were logged in to; without any name, all hosts in the file of hosts."""
        typed = typed_hosts(request)
        named = {host.name: KnownHost(host.target, self._root(host.probe.home), host.probe.python)
               for host in self._logins.logged_in(typed)}  # fmt: skip
        known = {} if typed else {name: self._book.require(name) for name in self._book.names()}
        return [
            node_resource(name, known_host, NodeRecord(name, "", ResourceState.RUNNING), self._logins.folder)
            for name, known_host in {**named, **known}.items()
            if known_host.python  # else only its containers have one, and there is nothing to run outside of them
        ]

    # Making, finding, ending.

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        places = [parse_place(document) for document in offer.data["places"]]
        for index, place in enumerate(places):
            journal.will(MACHINE, intent.mark(index), f"{intent.token}-{index}", place.region)
        for place in places:
            root = self._root(place.home, place.engine)
            self._book.record(place.region, KnownHost(place.target, root, place.python, place.engine))
        image = str(offer.data.get("image_file") or "")

        def create_node(index: int) -> Resource:
            place = places[index]
            if place.engine:
                return as_provider_errors(lambda: self._create_container(index, place, intent))
            return as_provider_errors(lambda: self._create_node(index, place, intent, image))

        # Of several nodes on a host the first one goes ahead: the others find its agent, compiled.
        regions = [place.region for place in places]
        first = [index for index, region in enumerate(regions) if region not in regions[:index]]
        more = [index for index in range(len(places)) if index not in first]
        made = dict(zip([*first, *more], [*on_each(create_node, first), *on_each(create_node, more)], strict=True))
        for index in range(len(places)):
            journal.got(made[index])
        return [made[index] for index in range(len(places))]

    def _root(self, home: str, engine: str = "") -> str:
        return f"{home}/.gpuops-{self.context.owner}" + (f"-{engine}" if engine else "")

    def _connection(self, name: str, known_host: KnownHost) -> Connection:
        return self._logins.connection(host_of(name), known_host.target)

    def _agent(self, name: str, known_host: KnownHost) -> HostAgent:
        return HostAgent(
            self._connection(name, known_host), known_host.root, known_host.python, self.context.home / "cache"
        )

    def _containers(self, name: str, known_host: KnownHost) -> ContainerHost:
        return ContainerHost(self._connection(name, known_host), known_host.engine, known_host.root)

    def _create_container(self, index: int, place: NodePlace, intent: Intent) -> Resource:
        """Begin to: the image may have to be pulled first, which `describe` tells."""
        assert place.limits is not None
        known_host = self._book.require(place.region)
        spec = ContainerSpec(
            engine=place.engine,
            image=place.image,
            owner=intent.owner,
            mark=intent.mark(index),
            token=f"{intent.token}-{index}",
            root=known_host.root,
            cluster=intent.cluster,
            index=index,
            host=place.region,
            agent=self._agent(place.region, known_host).install(intent.agent),
            limits=place.limits,
            gpus=place.gpus,
            cores_share=place.cores_share,
        )
        self._containers(place.region, known_host).start(spec)
        return contained_resource(
            place.region, known_host, FoundNode(spec, ResourceState.STARTING), self._logins.folder
        )

    def _create_node(self, index: int, place: NodePlace, intent: Intent, image: str = "") -> Resource:
        """`image`: a file that the node's runs are started in; empty without one."""
        known_host = self._book.require(place.host)
        folder = f"{known_host.root}/{intent.cluster}/n{index}"
        within = within_words(image, known_host.root, gpus=place.all_gpus > 0) if image else None
        node = {
            "cluster": intent.cluster,
            "owner": intent.owner,
            "index": index,
            "mark": intent.mark(index),
            "token": f"{intent.token}-{index}",
            "end": None,
            "gpus": place.gpus,
            "cores_share": place.cores_share,
            "artefact": intent.agent.stem,
            "host": place.host,
            "within": within,
        }
        lease = {"boot_in": max(MIN_BOOT_LEASE_S, intent.boot_deadline - self.context.clock.now())}
        document = {"node": node, "lease": lease}
        self._ending.pop(resource_id(place.host, folder), None)
        self._agent(place.host, known_host).create_node(intent.agent, folder, document)
        # Another command that ended the last node before this one was there may have forgotten the host since.
        self._book.record(place.host, known_host)
        record = NodeRecord(
            intent.mark(index),
            folder,
            ResourceState.RUNNING,
            gpus=place.gpus,
            cores_share=place.cores_share,
            artefact=intent.agent.stem,
            token=f"{intent.token}-{index}",
            within=within,
        )
        return node_resource(place.host, known_host, record, self._logins.folder)

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        """Every node folder of this owner's, on these hosts or on all in the file of hosts."""
        names = [name for name in (regions or self._book.names()) if self._book.get(name)]
        return join_lists(on_each(self._list_or_error, names))

    def _list_or_error(self, name: str) -> list[Resource] | ProviderError:
        try:
            return self._list_and_tidy(name)
        except ProviderError as error:
            return error

    def _list_and_tidy(self, name: str) -> list[Resource]:
        known_host = self._book.get(name)
        nodes = [] if known_host is None else self._list_nodes(name, known_host)
        if known_host is not None and not nodes and self.context.clock.now() - known_host.written_at > ABANDONED_S:
            with suppress(ProviderError):  # it stays in the file, and the next list tries again
                self._tidy(name, known_host)
        return nodes

    def _tidy(self, name: str, known_host: KnownHost) -> None:
        """Remove what a crashed command has left on a host that has no node."""
        from gpuops.nodes import bootstrap

        as_provider_errors(lambda: bootstrap.remove_agent(self._connection(name, known_host), known_host.root))
        self._forget_unused(name, known_host)

    def _list_nodes(self, name: str, known_host: KnownHost) -> list[Resource]:
        """The nodes under one root of a host. Raises ProviderError."""
        try:
            if known_host.engine:
                found = self._containers(name, known_host).found(self.context.owner)
                return [
                    contained_resource(name, known_host, node, self._logins.folder)
                    for node in found
                    if node.spec.host == name
                ]
            records = self._agent(name, known_host).list_nodes(name)
        except NodeRefused as error:
            raise Rejected(error.message, error.hint) from error
        except NodeError as error:
            hint = f"{error.hint or 'see what is wrong there'}; gone for good? gpuops reap --forget {name}"
            raise Unknown(error.message, hint) from error
        return [node_resource(name, known_host, record, self._logins.folder) for record in records]

    def describe(self, resource: Resource) -> Resource:
        """The resource itself holds where the node is, so a host that was forgotten is reached, too. One that this
        process has just ended is gone: its agent has said so, and has removed it."""
        ending = self._ending.get(resource.id)
        if ending is not None and ending.is_done:
            return dataclasses.replace(resource, state=ResourceState.ENDED)
        for node in self._list_nodes(resource.region, known_host_of(resource)):
            if node.id == resource.id:
                return node
        return dataclasses.replace(resource, state=ResourceState.ENDED)

    def destroy(self, resources: Sequence[Resource]) -> None:
        """Each node ends itself and removes its folder; a thread for each waits for it."""
        for resource in resources:
            running = self._ending.get(resource.id)
            if running is None or not running.job.is_alive():
                self._ending[resource.id] = _Ending(partial(self._end, resource))
        clock = self.context.clock
        waits_until = clock.monotonic() + DESTROY_WAIT_S
        for resource in resources:
            self._ending[resource.id].job.join(max(0.0, waits_until - clock.monotonic()))
        for ending in (self._ending[resource.id] for resource in resources):
            if ending.error is not None:
                raise ending.error

    def _end(self, resource: Resource) -> None:
        from gpuops.nodes import bootstrap

        name, known_host, entry = resource.region, known_host_of(resource), self._book.get(resource.region)
        if known_host.engine:
            spec = parse_spec(json.loads(str(resource.data["container"])))
            as_provider_errors(lambda: self._containers(name, known_host).end(spec))
            is_used = entry is None or bool(self._list_nodes(name, known_host))
        else:
            folder = str(resource.data["folder"])
            is_used = as_provider_errors(lambda: self._agent(name, known_host).end_node(name, folder, resource.token))
        if entry is not None and not is_used:
            if known_host.engine:
                bootstrap.remove_agent(self._connection(name, known_host), known_host.root)
            self._forget_unused(name, entry)

    def _forget_unused(self, name: str, known_host: KnownHost) -> None:
        """Forget a host where nothing of ours is left: another machine may have its address next."""
        self._book.remove_unchanged(name, known_host)
        if not any(host_of(other) == host_of(name) for other in self._book.names()):
            with suppress(OSError):
                self._accepted.forget(host_of(name))

    def forget(self, region: str) -> bool:
        """Remove a host that no longer exists, or was set up anew, from the file of hosts and from the accepted keys.
        Returns whether it was in either."""
        was_accepted = self._accepted.forget(host_of(region))
        return self._book.remove(region) or was_accepted

    def self_destruct(self, resource: Resource) -> Sequence[str] | None:
        return None


class _Ending:
    """The end of a node, which runs in a thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.error: Exception | None = None
        self.is_done = False
        """It has ended, and the host has said so."""
        self._work = work
        self.job = WORKERS.start(self._run, "end of a node")

    def _run(self) -> None:
        try:
            self._work()
            self.is_done = True
        except Exception as error:  # whoever asks for this end again hears of it
            self.error = error


def as_provider_errors(work: Callable[[], T]) -> T:
    """The value of `work`, with a node's errors raised as a provider's."""
    try:
        return work()
    except ConnectionLost as error:
        raise Unknown(error.message, error.hint) from error
    except (NodeRefused, NodeError) as error:
        raise Rejected(error.message, error.hint) from error
