"""RunPod as a provisioner: one pod is one machine, and several are an Instant Cluster.

Pods that are made one by one reach each other by public ports alone, renumbered one by one, or at 100 Mbit/s: NCCL
needs more than that, so several nodes are always a cluster.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuops.core.errors import AuthFailed, NoCapacity, ProviderError, Rejected, Unknown, UsageError
from gpuops.core.models import Intent, Journal, Offer, Option, Payer, Problem, Request, Resource
from provisioners import keys
from provisioners.base import CONTRACT, Context
from provisioners.runpod import boot_log, catalog, offers, options, pods
from provisioners.runpod.account import FRESH_S, Account
from provisioners.runpod.api import Api, segment
from provisioners.runpod.catalog import REGION
from provisioners.runpod.options import Wishes
from provisioners.runpod.self_destruct import SOURCE
from provisioners.runpod.stock import Shelf

PULLING_S = 60.0
"""So long a pod is no node before its host's log is looked at, and again; and so long it may have no public address."""
LOG_S = 5.0
LOG_LINES = 40
LAST_LINES = 20


class RunpodProvisioner:
    contract = CONTRACT
    name = "runpod"
    capabilities: Mapping[str, bool | str] = {
        "multinode": True,
        "spot": "RunPod has given up spot prices; --cloud community is its cheaper one",
        "self_destruct": True,
        "host_keys": True,
        "rented": True,
        "shares_disk": "a pod has its own disk",
    }
    options: Sequence[Option] = options.OPTIONS
    settle_s = 45.0
    gone_s = 120.0

    def __init__(self, context: Context) -> None:
        self.context = context
        self._api = Api(context.env, context.dotenv)
        self._shelf = Shelf(self._api)
        self._account = Account(context.env, context.dotenv)
        self._lock = threading.Lock()
        self._seen: dict[str, boot_log.Seen] = {}
        self._never_up: dict[str, str] = {}

    # Before anything is made.

    def preflight(self, request: Request) -> Sequence[Problem]:
        wishes = options.wishes(request)
        try:
            self._api.pages("/pods", "pods", "list pods", includeClusterPods=True)
            centers = self._shelf.centers(request.region)
            if wishes.volume:
                self._shelf.volume(wishes.volume, centers)
            self._shelf.settled(wishes)
        except (AuthFailed, Rejected) as error:
            return [Problem(error.say, error.hint)]
        return []

    def offers(self, request: Request) -> Sequence[Offer]:
        """Kinds of GPU that are free, the cheapest first; each is tried until one is had."""
        wishes = self._shelf.settled(options.wishes(request))
        if wishes.cloud != "ANY":
            return self._in_cloud(request, wishes)
        found: list[Offer] = []
        errors: list[NoCapacity | UsageError] = []
        for cloud in ["SECURE"] if wishes.volume or wishes.nodes > 1 else ["SECURE", "COMMUNITY"]:
            try:
                found += self._in_cloud(request, dataclasses.replace(wishes, cloud=cloud))
            except (NoCapacity, UsageError) as error:
                errors.append(error)
        if not found:
            raise next((error for error in errors if isinstance(error, NoCapacity)), errors[0])
        return sorted(found, key=lambda offer: offer.per_hour)[: offers.MOST]

    def _in_cloud(self, request: Request, wishes: Wishes) -> list[Offer]:
        centers = self._shelf.centers(request.region)
        volume = self._shelf.volume(wishes.volume, centers) if wishes.volume else None
        if volume:
            centers = [str(volume["dataCenter"])]
        gpus = catalog.chosen(self._shelf.gpus(wishes), request.gpu_type, request.gpu_mem)
        if wishes.nodes > 1:
            gpus = self._shelf.in_cluster(gpus)
        if centers:
            gpus = [catalog.within(gpu, centers) for gpu in gpus]
        if wishes.least:
            gpus = self._shelf.roomy(gpus, wishes, centers)
        try:
            return offers.offers(gpus, wishes, centers, volume)
        except NoCapacity as error:
            if wishes.nodes == 1:
                raise
            raise NoCapacity(error.say, self._shelf.shapes(wishes)) from error

    # Making.

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """A pod, or a cluster of them. Their environment holds all that it takes when the answer is lost."""
        if offer.nodes > 1:
            return self._create_cluster(offer, intent, journal)
        name, token = intent.mark(0), f"{intent.token}-0"
        env, mine = self._variables(intent, token), self._account.marks()
        body = pods.body(name, offer.data, env)
        journal.will("machine", name, token, REGION)
        made = self._api.post("/pods", body, f"create a pod with {offer.data['count']} x {offer.data['gpu_name']}")
        found = pods.resource(pods.with_env(made, env), name, self.context.home, mine, price=offer.per_hour)
        journal.got(found)
        return [found]

    def _create_cluster(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """One request for all. A rank is `null until the index is assigned during provisioning`: where they have none
        yet, what was made is the cluster, and its members are listed as machines once RunPod has numbered them."""
        name, token, mine = intent.mark(pods.PART), f"{intent.token}-all", self._account.marks()
        env = {**self._variables(intent, intent.token), pods.MARK: intent.mark("")}
        body = pods.cluster_body(name, offer.data, env)
        journal.will(pods.PART, name, token, REGION)
        for index in range(offer.nodes):
            journal.will("machine", intent.mark(index), f"{intent.token}-{index}", REGION)
        what = f"create a cluster of {offer.nodes} times {offer.data['count']} x {offer.data['gpu_name']}"
        answer = {**self._api.post("/clusters", body, what), "name": name, "compute": body["compute"]}
        whole = pods.cluster_resource(answer, mine, token)
        journal.got(whole)
        made = [whole]
        price = offer.per_hour / offer.nodes
        for index, pod in enumerate(self._ranked(whole.id, offer.nodes)):
            seen = pods.with_env(pod, env)
            made.append(pods.resource(seen, intent.mark(index), self.context.home, mine, price=price, parent=whole.id))
            journal.got(made[-1])
        return made

    def _variables(self, intent: Intent, token: str) -> dict[str, str]:
        _, public = keys.login(self.context.home)
        return pods.variables(intent, token, keys.new(), public, self._api.base)

    def _ranked(self, cluster: str, nodes: int) -> list[dict[str, Any]]:
        """A cluster's pods in the order of their ranks; none while they are not all known."""
        try:
            there = self._api.pages(f"/clusters/{segment(cluster)}/pods", "pods", "list a cluster's pods")
        except ProviderError:
            return []
        ranked = {pods.rank(pod): pod for pod in there}
        return [ranked[index] for index in range(nodes)] if set(ranked) == set(range(nodes)) else []

    # Finding.

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        if regions and REGION not in regions:
            return []
        ours, mine = f"gpuops-{owner}-", self._account.marks()
        there = self._api.pages("/pods", "pods", "list pods", includeClusterPods=True)
        members = any(pods.member(pod) and pods.mark(pod, {}).startswith(ours) for pod in there)
        whole = {str(one["id"]): one for one in self._clusters(members)}
        names = {one: str(cluster.get("name") or "") for one, cluster in whole.items()}
        found = [
            pods.resource(pod, name, self.context.home, mine, kind=pods.kind(pod))
            for pod in there
            if (name := pods.mark(pod, names)).startswith(ours)
        ]
        tokens = {one.parent: str(one.data["token"]) for one in found if one.parent}
        return [
            *(
                pods.cluster_resource(whole[one], mine, tokens.get(one, ""))
                for one in whole
                if names[one].startswith(ours)
            ),
            *(one for one in found if one.state != "ended"),
        ]

    def _clusters(self, members: bool) -> list[dict[str, Any]]:
        """All clusters. A key that may not ask for them has made none; members are among the pods in any case.

        `members`: whether some of ours are there. Without, no pod waits for a list that is refused (404) or fails.
        """
        try:
            return self._api.pages("/clusters", "clusters", "list clusters")
        except AuthFailed:
            return []
        except (Rejected, Unknown):
            if members:
                raise
            return []

    def describe(self, resource: Resource) -> Resource:
        whole = resource.kind == pods.PART
        path = f"/{'clusters' if whole else 'pods'}/{segment(resource.id)}"
        seen = self._api.find(path, f"look at a {'cluster' if whole else 'pod'}")
        if seen is None:
            self._account.check(resource)
            return dataclasses.replace(resource, state="ended", address="", port=0, per_hour=0.0)
        if whole:
            return dataclasses.replace(resource, state="running")
        mine, before = self._account.marks(), resource.data
        now = pods.resource(
            seen, resource.name, self.context.home, mine, known=before, parent=resource.parent, kind=resource.kind
        )
        if pods.is_coming(seen) and not before.get("artefact") and (never := self._judged(resource.id, seen)).say:
            now = dataclasses.replace(now, data={**now.data, "hopeless": never.say, "stopped": never.machine})
        if pods.has_stopped(seen):
            why = "" if before.get("artefact") else self._why_never_up(resource.id)  # what was a node had come up
            told = {"hopeless": why or pods.EXITED, "stopped": not why}
            now = dataclasses.replace(now, data={**now.data, **told})
        return now

    # Ending.

    def destroy(self, resources: Sequence[Resource]) -> None:
        """Clusters first: a member cannot go by itself while they are, and one that stays behind then can."""
        whole = dict.fromkeys(one.id if one.kind == pods.PART else one.parent for one in resources)
        ends: list[Callable[[], Any]] = [partial(self._end_cluster, one) for one in whole if one]
        ends += [partial(self._end, one) for one in resources if one.kind != pods.PART]
        errors: list[ProviderError] = []
        for end in ends:
            try:
                end()
            except ProviderError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _end_cluster(self, cluster: str) -> None:
        self._api.delete(f"/clusters/{segment(cluster)}", "end a cluster")

    def _end(self, pod: Resource) -> None:
        """End a pod. Of a member whose cluster is not known that is found out; one that cannot go yet is left."""
        path = f"/pods/{segment(pod.id)}"
        refused = self._api.delete(path, "end a pod") == 409
        if refused and not pod.parent and (cluster := pods.member(self._api.find(path, "look at a pod") or {})):
            self._end_cluster(cluster)

    def self_destruct(self, resource: Resource) -> Sequence[str]:
        python = str(resource.data.get("python") or "python3")
        return [python, "-I", "-c", SOURCE, self._api.base, *([resource.parent] if resource.parent else [])]

    # What else can be asked.

    def last_words(self, resource: Resource) -> str:
        """The last lines of a pod's own log."""
        return "\n".join(self._log(resource.id)[-LAST_LINES:]) if resource.kind != pods.PART else ""

    def balance(self) -> float | None:
        found = self._account.told(FRESH_S).get("balance")
        return None if found is None else float(found)

    def account(self) -> Mapping[str, Any]:
        """`id`, `email`, `balance`, `spend_per_hr`, `spend_limit`, those that are known; asked once."""
        return self._account.told()

    def payer(self, request: Request, patience_s: float) -> Payer:
        return self._account.payer(patience_s)

    def _log(self, pod: str, source: str | None = None) -> list[str]:
        """Its last lines; `source`: the container's own, or its host's (`system`) alone."""
        path = f"/pods/{segment(pod)}/logs"
        return boot_log.lines(self._api.listen(path, LOG_S, "read a pod's log", tail=LOG_LINES, source=source))

    def _why_never_up(self, pod: str) -> str:
        """What its host says of a stopped pod; looked at once."""
        if pod not in self._never_up:
            try:
                self._never_up[pod] = boot_log.never_up(self._log(pod, "system"))
            except ProviderError:
                return ""
        return self._never_up[pod]

    def _judged(self, pod: str, told: Mapping[str, Any]) -> boot_log.Why:
        """What there is to say of a pod that has been no node for a while; its log is looked at once in that while."""
        now = time.monotonic()
        with self._lock:
            seen = self._seen.get(pod, boot_log.Seen(now)).at(told, now)
            read = now - seen.since >= PULLING_S
            self._seen[pod] = seen = seen.read(boot_log.Why(), now) if read else seen
        if read:
            try:
                self._seen[pod] = seen = seen.read(boot_log.judge(self._log(pod, "system")), now)
            except ProviderError:
                pass
        return seen.judged(told, now, PULLING_S)
