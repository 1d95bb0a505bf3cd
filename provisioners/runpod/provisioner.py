"""RunPod as a provisioner: one pod is one machine, and several are an Instant Cluster.

Pods that are made one by one reach each other by public ports alone, renumbered one by one, or at 100 Mbit/s: NCCL
needs more than that, so several nodes are always a cluster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.core.account_variables import OURS
from gpuops.core.errors import AuthFailed, NoCapacity, Rejected, UsageError
from gpuops.core.models import Intent, Journal, Offer, Option, Payer, Problem, Request, Resource
from provisioners.base import CONTRACT, Context
from provisioners.kit import keys
from provisioners.runpod import catalog, launch, machines, offers, options
from provisioners.runpod.account import BALANCE_VALID_S, Account
from provisioners.runpod.api import Api
from provisioners.runpod.capacity import Stock
from provisioners.runpod.launch import PodSpec
from provisioners.runpod.lifecycle import Lifecycle
from provisioners.runpod.options import Wishes
from provisioners.runpod.pods import MARK, parse_cluster, parse_pod
from provisioners.runpod.regions import REGION
from provisioners.runpod.self_destruct import SOURCE


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
    examples: Sequence[str] = (
        "--gpus 1 --dry-run",
        "--gpus 4 --gpu-type 'rtx 4090' --max-hours 3",
        "--gpus 8 --gpu-type h100 --nodes 2 --max-cost 200",
        "--gpus 1 --cloud community --max-price 0.3 --wait 2h",
    )
    credentials: Sequence[str] = OURS["runpod"].credentials
    surroundings: Sequence[str] = OURS["runpod"].surroundings
    settle_s = 45.0
    gone_s = 120.0

    def __init__(self, context: Context) -> None:
        self.context = context
        self._api = Api(context.env, context.dotenv, context.clock)
        self._stock = Stock(self._api)
        self._account = Account(context.env, context.dotenv, context.clock)
        self._lifecycle = Lifecycle(self._api, self._account, context.home, context.clock)

    # Before anything is made.

    def preflight(self, request: Request) -> Sequence[Problem]:
        wishes = options.wishes(request)
        try:
            self._api.pages("/pods", "pods", "list pods", includeClusterPods=True)
            centers = self._stock.centers(request.region)
            if wishes.volume:
                self._stock.volume(wishes.volume, centers)
            self._stock.resolve_ids(wishes)
        except (AuthFailed, Rejected) as error:
            return [Problem(error.message, error.hint)]
        return []

    def offers(self, request: Request) -> Sequence[Offer]:
        """Kinds of GPU that are free, the cheapest first; each is tried until one is had."""
        wishes = self._stock.resolve_ids(options.wishes(request))
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
        return sorted(found, key=lambda offer: offer.per_hour)[: offers.MAX_OFFERS]

    def _in_cloud(self, request: Request, wishes: Wishes) -> list[Offer]:
        centers = self._stock.centers(request.region)
        volume = self._stock.volume(wishes.volume, centers) if wishes.volume else None
        if volume:
            centers = [volume.center]
        gpus = catalog.select_gpus(self._stock.gpus(wishes), request.gpu_type, request.gpu_mem)
        if wishes.nodes > 1:
            gpus = self._stock.with_cluster_prices(gpus)
        if centers:
            gpus = [catalog.restrict_to_centers(gpu, centers) for gpu in gpus]
        if wishes.least:
            gpus = self._stock.with_minimums(gpus, wishes, centers)
        try:
            return offers.offers(gpus, wishes, centers, volume)
        except NoCapacity as error:
            if wishes.nodes == 1:
                raise
            raise NoCapacity(error.message, self._stock.suggest_clusters(wishes)) from error

    # Making.

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """A pod, or a cluster of them. Their environment holds all that adopting them takes when no answer comes."""
        spec = launch.PodSpec.parse(offer.data)
        if offer.nodes > 1:
            return self._create_cluster(spec, offer.per_hour, intent, journal)
        name, token = intent.mark(0), f"{intent.token}-0"
        env, account = self._variables(intent, token), self._account.data()
        journal.will(machines.MACHINE, name, token, REGION)
        document = self._api.create_object("/pods", launch.pod_body(name, spec, env), f"create a pod with {spec.say}")
        pod = parse_pod(document).with_env(env)
        resource = machines.pod_resource(pod, machines.new_pod(pod, name), self.context.home, account, offer.per_hour)
        journal.got(resource)
        return [resource]

    def _create_cluster(self, spec: PodSpec, per_hour: float, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """One request for all nodes. A rank is `null until the index is assigned during provisioning`: where ranks are
        missing, the cluster alone is returned, and `list_owned` has its members once RunPod has numbered them."""
        name, token, account = intent.mark(machines.CLUSTER), f"{intent.token}-all", self._account.data()
        env = {**self._variables(intent, intent.token), MARK: intent.mark("")}
        journal.will(machines.CLUSTER, name, token, REGION)
        for index in range(spec.nodes):
            journal.will(machines.MACHINE, intent.mark(index), f"{intent.token}-{index}", REGION)
        self._lifecycle.asked_for_cluster = True
        doing = f"create a cluster of {spec.nodes} times {spec.say}"
        created = parse_cluster(self._api.create_object("/clusters", launch.cluster_body(name, spec, env), doing))
        created = dataclasses.replace(created, name=name, pod_count=spec.nodes)
        cluster = machines.cluster_resource(created, account, token)
        journal.got(cluster)
        made = [cluster]
        for index, pod in enumerate(self._lifecycle.pods_by_rank(cluster.id, spec.nodes)):
            member = machines.new_pod(pod, intent.mark(index), parent=cluster.id)
            made.append(
                machines.pod_resource(pod.with_env(env), member, self.context.home, account, per_hour / spec.nodes)
            )
            journal.got(made[-1])
        return made

    def _variables(self, intent: Intent, token: str) -> dict[str, str]:
        _, public = keys.ensure_login_key(self.context.home)
        return launch.pod_environment(intent, token, keys.generate_key_pair(), public, self._api.base)

    # Finding and ending.

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return [] if regions and REGION not in regions else self._lifecycle.list_marked(f"gpuops-{owner}-")

    def list_every_owner(self) -> Sequence[Resource]:
        return self._lifecycle.list_marked("gpuops-")

    def describe(self, resource: Resource) -> Resource:
        return self._lifecycle.describe(resource)

    def destroy(self, resources: Sequence[Resource]) -> None:
        self._lifecycle.destroy(resources)

    def self_destruct(self, resource: Resource) -> Sequence[str]:
        python = str(resource.data.get("python") or "python3")
        return [python, "-I", "-c", SOURCE, self._api.base, *([resource.parent] if resource.parent else [])]

    # What else can be asked.

    def provider_time(self) -> float | None:
        return self._api.server_time()

    def last_words(self, resource: Resource) -> str:
        return self._lifecycle.last_words(resource)

    def balance(self) -> float | None:
        return self._account.facts(BALANCE_VALID_S).balance

    def account(self) -> Mapping[str, Any]:
        """`id`, `email`, `balance`, `spend_per_hr`, `spend_limit`, those that are known."""
        return self._account.facts(BALANCE_VALID_S).document()

    def payer(self, request: Request, patience_s: float) -> Payer:
        return self._account.payer(patience_s)
