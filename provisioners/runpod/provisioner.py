"""RunPod as a provisioner: one pod is one machine, and several are an Instant Cluster.

Pods that are made one by one reach each other by public ports alone, renumbered one by one, or at 100 Mbit/s: NCCL
needs more than that, so several nodes are always a cluster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpuops.core.account_variables import OURS
from gpuops.core.errors import AuthFailed, NoCapacity, ProviderError, Rejected, Unknown, UsageError
from gpuops.core.models import MACHINE, Intent, Journal, Offer, Problem, Request, Resource, ResourceState
from provisioners.base import Context
from provisioners.kit.account import AccountFacts
from provisioners.kit.calls import each
from provisioners.kit.documents import Document, inner
from provisioners.kit.json_api import path_segment
from provisioners.kit.keys import ensure_login_key, generate_key_pair
from provisioners.kit.machine_offer import cheapest
from provisioners.kit.rented import NewMachine, RentedProvisioner, all_but
from provisioners.kit.ssh_machine import Machine
from provisioners.runpod import account, catalog, launch, machines, offers, options
from provisioners.runpod.api import Api
from provisioners.runpod.boot_script import BOOT
from provisioners.runpod.capacity import Stock
from provisioners.runpod.launch import PodSpec
from provisioners.runpod.machines import CLUSTER, Cluster, Pod, Status, parse_cluster, parse_pod
from provisioners.runpod.options import Wishes
from provisioners.runpod.pod_log import PodLogs
from provisioners.runpod.regions import REGION
from provisioners.runpod.service import SERVICE, graphql_base


class RunpodProvisioner(RentedProvisioner):
    name = "runpod"
    service = SERVICE
    capabilities = all_but(
        spot="RunPod has given up spot prices; --cloud community is its cheaper one",
        shares_disk="a pod has its own disk",
    )
    wishes = options.Wishes
    examples = (
        "--gpus 1 --dry-run",
        "--gpus 4 --gpu-type 'rtx 4090' --max-hours 3",
        "--gpus 8 --gpu-type h100 --nodes 2 --max-cost 200",
        "--gpus 1 --cloud community --max-price 0.3 --wait 2h",
    )
    surroundings = OURS["runpod"].surroundings
    settle_s = 45.0
    gone_s = 120.0
    api_class = Api
    api: Api
    boot = BOOT
    balance_valid_s = account.BALANCE_VALID_S
    without_private_hosts = "--cloud secure leaves those out"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._stock = Stock(self.api)
        self._logs = PodLogs(self.api, context.clock)
        self._asked_for_cluster = False
        """Whether this process has: the answer may be lost, and members may be listed late."""

    # Before anything is made.

    def problems(self, request: Request) -> Sequence[Problem]:
        wishes = options.wishes(request)
        self._list_pods()
        centers = self._stock.centers(request.region)
        if wishes.volume:
            self._stock.volume(wishes.volume, centers)
        self._stock.resolve_ids(wishes)
        return []

    def offers(self, request: Request) -> Sequence[Offer]:
        """Kinds of GPU that are free, the cheapest first; each is tried until one is had."""
        wishes = self._stock.resolve_ids(options.wishes(request))
        if wishes.cloud != "ANY":
            return self.warn_of_hosts(self._in_cloud(request, wishes))
        found: list[Offer] = []
        errors: list[NoCapacity | UsageError] = []
        for cloud in ["SECURE"] if wishes.volume or wishes.nodes > 1 else ["SECURE", "COMMUNITY"]:
            try:
                found += self._in_cloud(request, dataclasses.replace(wishes, cloud=cloud))
            except (NoCapacity, UsageError) as error:
                errors.append(error)
        if not found:
            raise next((error for error in errors if isinstance(error, NoCapacity)), errors[0])
        return self.warn_of_hosts(cheapest(found))

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
        if offer.nodes == 1:
            return super().create(offer, intent, journal)
        return self._create_cluster(launch.PodSpec.parse(offer.data), offer.per_hour, intent, journal)

    def launch(self, offer: Offer, new: NewMachine) -> Machine:
        spec, env = launch.PodSpec.parse(offer.data), launch.pod_environment(new, self.api.address)
        body, doing = launch.pod_body(new.name, spec, env), f"create a pod with {spec.say}"
        made = self.api.create_object("/pods", body, doing)
        return dataclasses.replace(parse_pod(_with_env(made, env), price=offer.per_hour), name=new.name)

    def _create_cluster(self, spec: PodSpec, per_hour: float, intent: Intent, journal: Journal) -> Sequence[Resource]:
        """One request for all nodes. A rank is `null until the index is assigned during provisioning`: where ranks are
        missing, the cluster alone is returned, and `list_owned` has its members once RunPod has numbered them."""
        name, token, account_data = intent.mark(CLUSTER), f"{intent.token}-all", self.key_account.data()
        _, login = ensure_login_key(self.context.home)
        new = NewMachine(name, intent.token, generate_key_pair(), login, "", intent.boot_deadline)
        env = {**launch.pod_environment(new, self.api.address), launch.MARK: intent.mark("")}
        journal.will(CLUSTER, name, token, REGION)
        for index in range(spec.nodes):
            journal.will(MACHINE, intent.mark(index), f"{intent.token}-{index}", REGION)
        self._asked_for_cluster = True
        doing = f"create a cluster of {spec.nodes} times {spec.say}"
        created = parse_cluster(self.api.create_object("/clusters", launch.cluster_body(name, spec, env), doing))
        created = dataclasses.replace(created, name=name, pod_count=spec.nodes)
        cluster = machines.cluster_resource(created, account_data, token)
        journal.got(cluster)
        made = [cluster]
        for index, document in enumerate(self._pods_by_rank(cluster.id, spec.nodes)):
            member = parse_pod(_with_env(document, env), cluster.id, price=per_hour / spec.nodes)
            member = dataclasses.replace(member, name=intent.mark(index))
            made.append(self._resource(member, account_data))
            journal.got(made[-1])
        return made

    def _pods_by_rank(self, cluster: str, nodes: int) -> list[Document]:
        """A cluster's pods in the order of their ranks; none while RunPod has not numbered all of them."""
        try:
            listed = self.api.pages(f"/clusters/{path_segment(cluster)}/pods", "pods", "list a cluster's pods")
        except ProviderError:
            return []
        by_rank = {parse_pod(pod).rank: pod for pod in listed}
        return [by_rank[index] for index in range(nodes)] if set(by_rank) == set(range(nodes)) else []

    # Finding.

    def list_machines(self) -> Sequence[Machine]:
        return self._list_all("gpuops-")[0]

    def list_marked(self, prefix: str) -> Sequence[Resource]:
        """Clusters, and pods."""
        account_data = self.key_account.data()
        pods, clusters = self._list_all(prefix)
        listed = self.marked_machines(prefix, pods, account_data)
        tokens = {member.parent: str(member.data["token"]) for member in listed if member.parent}
        ours = [cluster for cluster in clusters if cluster.name.startswith(prefix)]
        return [*(machines.cluster_resource(one, account_data, tokens.get(one.id, "")) for one in ours), *listed]

    def _list_all(self, prefix: str) -> tuple[list[Pod], list[Cluster]]:
        """All pods and clusters. A pod's cluster tells its mark where its own name does not. `prefix`: how a mark
        begins that nothing may be left out of."""
        pods = self._list_pods()
        has_members = any(pod.parent and machines.resource_name(pod, {}).startswith(prefix) for pod in pods)
        clusters = self._list_clusters(may_be_ours=has_members or self._asked_for_cluster)
        names = {cluster.id: cluster.name for cluster in clusters}
        return [dataclasses.replace(pod, name=machines.resource_name(pod, names)) for pod in pods], clusters

    def _list_pods(self) -> list[Pod]:
        return [parse_pod(one) for one in self.api.pages("/pods", "pods", "list pods", includeClusterPods=True)]

    def _list_clusters(self, *, may_be_ours: bool) -> list[Cluster]:
        """All clusters. A key that may not list them has made none; their members are listed as pods in any case.

        `may_be_ours`: whether one of them may be. If not, a list that is refused (404) or fails counts as empty: no
        single pod's end waits for it.
        """
        try:
            return [parse_cluster(document) for document in self.api.pages("/clusters", "clusters", "list clusters")]
        except AuthFailed:
            return []
        except (Rejected, Unknown):
            if may_be_ours:
                raise
            return []

    def describe(self, resource: Resource) -> Resource:
        """A pod or a cluster as it is now."""
        if resource.kind != CLUSTER:
            return super().describe(resource)
        if self.api.find_object(f"/clusters/{path_segment(resource.id)}", "look at a cluster"):
            return dataclasses.replace(resource, state=ResourceState.RUNNING)
        return self.ended(resource)

    def find_machine(self, resource: Resource) -> Machine | None:
        document = self._find_pod(resource)
        if document is None:
            return None
        pod, was_node = parse_pod(document, resource.parent, resource.data), bool(resource.data.get("artefact"))
        now: dict[str, Any] = {}
        if pod.is_coming and not was_node and (fault := self._logs.boot_fault(pod)).say:
            now = {"hopeless": fault.say, "stopped": fault.machine}
        if pod.status is Status.EXITED:
            why = "" if was_node else self._logs.why_never_up(pod.id)
            now = {"hopeless": why or machines.EXITED, "stopped": not why}
        return dataclasses.replace(pod, data={**pod.data, **now})

    def _find_pod(self, pod: Resource) -> Document | None:
        return self.api.find_object(f"/pods/{path_segment(pod.id)}", "look at a pod")

    # Ending.

    def destroy(self, resources: Sequence[Resource]) -> None:
        """Clusters first: a member cannot go while its cluster is there, and one that is left behind can."""
        clusters = dict.fromkeys(resource.id if resource.kind == CLUSTER else resource.parent for resource in resources)
        pods = [resource for resource in resources if resource.kind != CLUSTER]
        each(
            [
                *(partial(self._end_cluster, cluster) for cluster in clusters if cluster),
                *(partial(self.end_machine, pod) for pod in pods),
            ]
        )

    def _end_cluster(self, cluster: str) -> None:
        self.api.delete(f"/clusters/{path_segment(cluster)}", "end a cluster", accepted=(404, 409))

    def end_machine(self, resource: Resource) -> None:
        """A member that cannot go by itself (409) is ended with its cluster; any other is left for the next round."""
        path = f"/pods/{path_segment(resource.id)}"
        refused = self.api.delete(path, "end a pod", accepted=(404, 409)) == 409
        document = self._find_pod(resource) if refused and not resource.parent else None
        if document and (cluster := parse_pod(document).parent):
            self._end_cluster(cluster)

    def self_destruct(self, resource: Resource) -> Sequence[str]:
        """A member of a cluster is told which."""
        return [*self.boot.end_argv(self.api.address, resource), *([resource.parent] if resource.parent else [])]

    def last_words(self, resource: Resource) -> str:
        return self._logs.last_words(resource.id) if resource.kind != CLUSTER else ""

    # The account.

    def ask_account(self) -> AccountFacts:
        env = self.context.env
        return account.query_account(self.api.key, graphql_base(env), env)


def _with_env(pod: Document, env: Mapping[str, str]) -> Document:
    """A pod that was just made, whose answer may hold only a part of its environment."""
    return {**pod, "env": {**env, **inner(pod, "env")}}
