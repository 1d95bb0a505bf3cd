"""Finding what is ours at RunPod, describing one pod or cluster of it, reading its log, and ending it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gpuops.core.errors import AuthFailed, ProviderError, Rejected, Unknown
from gpuops.core.models import Resource, ResourceState
from gpuops.core.polling import Clock
from provisioners.kit.calls import each
from provisioners.kit.json_api import path_segment
from provisioners.runpod import boot_log, machines
from provisioners.runpod.account import Account
from provisioners.runpod.api import Api
from provisioners.runpod.machines import CLUSTER
from provisioners.runpod.pods import Cluster, Pod, Status, parse_cluster, parse_pod

IMAGE_PULL_LOG_INTERVAL_S = 60.0
"""How long a pod may be no node before its host's log is read, and from then on from one reading to the next: a normal
pull takes about as long. A pod may have no public address for as long as that, too."""
LOG_LISTEN_S = 5.0
"""RunPod streams a log and does not end it."""
LOG_LINES = 40
LAST_LINES = 20
"""Lines of a log that an error quotes."""


class Lifecycle:
    """All of an account's pods and clusters. Raises ProviderError; may be used from any thread."""

    def __init__(self, api: Api, account: Account, home: Path, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._account = account
        self._home = home
        self._lock = threading.Lock()
        self._observed: dict[str, boot_log.BootObservation] = {}
        self._never_up: dict[str, str] = {}
        self.asked_for_cluster = False
        """Whether this process has: the answer may be lost, and members may be listed late."""

    # Finding.

    def list_marked(self, prefix: str) -> list[Resource]:
        """Every pod and cluster whose mark begins so. A pod's cluster tells its mark where its own name does not."""
        account = self._account.data()
        listed = self._api.pages("/pods", "pods", "list pods", includeClusterPods=True)
        pods = [parse_pod(document) for document in listed]
        has_members = any(pod.cluster and machines.resource_name(pod, {}).startswith(prefix) for pod in pods)
        clusters = self._list_clusters(may_be_ours=has_members or self.asked_for_cluster)
        names = {cluster.id: cluster.name for cluster in clusters}
        members_and_machines = [
            machines.pod_resource(pod, machines.new_pod(pod, name, kind=pod.kind), self._home, account)
            for pod in pods
            if (name := machines.resource_name(pod, names)).startswith(prefix)
        ]
        tokens = {member.parent: str(member.data["token"]) for member in members_and_machines if member.parent}
        return [
            *(
                machines.cluster_resource(cluster, account, tokens.get(cluster.id, ""))
                for cluster in clusters
                if cluster.name.startswith(prefix)
            ),
            *(resource for resource in members_and_machines if resource.state != ResourceState.ENDED),
        ]

    def _list_clusters(self, *, may_be_ours: bool) -> list[Cluster]:
        """All clusters. A key that may not list them has made none; their members are listed as pods in any case.

        `may_be_ours`: whether one of them may be. If not, a list that is refused (404) or fails counts as empty: no
        single pod's end waits for it.
        """
        try:
            return [parse_cluster(document) for document in self._api.pages("/clusters", "clusters", "list clusters")]
        except AuthFailed:
            return []
        except (Rejected, Unknown):
            if may_be_ours:
                raise
            return []

    def pods_by_rank(self, cluster: str, nodes: int) -> list[Pod]:
        """A cluster's pods in the order of their ranks; none while RunPod has not numbered all of them."""
        try:
            listed = self._api.pages(f"/clusters/{path_segment(cluster)}/pods", "pods", "list a cluster's pods")
        except ProviderError:
            return []
        by_rank = {pod.rank: pod for pod in map(parse_pod, listed)}
        return [by_rank[index] for index in range(nodes)] if set(by_rank) == set(range(nodes)) else []

    # One look.

    def describe(self, resource: Resource) -> Resource:
        """A pod or a cluster as it is now. Raises AuthFailed where another account's key may see it."""
        is_cluster = resource.kind == CLUSTER
        path = f"/{'clusters' if is_cluster else 'pods'}/{path_segment(resource.id)}"
        document = self._api.find_object(path, f"look at a {'cluster' if is_cluster else 'pod'}")
        if document is None:
            self._account.check(resource)
            return dataclasses.replace(resource, state=ResourceState.ENDED, address="", port=0, per_hour=0.0)
        if is_cluster:
            return dataclasses.replace(resource, state=ResourceState.RUNNING)
        return self._describe_pod(parse_pod(document), resource)

    def _describe_pod(self, pod: Pod, resource: Resource) -> Resource:
        now = machines.pod_resource(pod, resource, self._home, self._account.data())
        was_node = bool(resource.data.get("artefact"))
        if pod.is_coming and not was_node and (fault := self._boot_fault(pod)).say:
            now = dataclasses.replace(now, data={**now.data, "hopeless": fault.say, "stopped": fault.machine})
        if pod.status is Status.EXITED:
            why = "" if was_node else self._why_never_up(pod.id)
            now = dataclasses.replace(now, data={**now.data, "hopeless": why or machines.EXITED, "stopped": not why})
        return now

    def _boot_fault(self, pod: Pod) -> boot_log.BootFault:
        """Why a pod will never be a node; its host's log is read once in IMAGE_PULL_LOG_INTERVAL_S."""
        now = self._clock.monotonic()
        with self._lock:
            observed = self._observed.get(pod.id, boot_log.BootObservation(now)).after_look(pod.carrier_address, now)
            due = now - observed.since >= IMAGE_PULL_LOG_INTERVAL_S
            self._observed[pod.id] = observed = observed.after_log(boot_log.BootFault(), now) if due else observed
        if due:
            try:
                fault = boot_log.diagnose(self._log(pod.id, "system"))
                self._observed[pod.id] = observed = observed.after_log(fault, now)
            except ProviderError:
                pass  # the next reading may succeed
        return observed.verdict(pod.carrier_address, now, IMAGE_PULL_LOG_INTERVAL_S)

    def _why_never_up(self, pod: str) -> str:
        """What its host says of a pod that has stopped and never was a node; read once."""
        if pod not in self._never_up:
            try:
                self._never_up[pod] = boot_log.find_start_failure(self._log(pod, "system"))
            except ProviderError:
                return ""
        return self._never_up[pod]

    def last_words(self, resource: Resource) -> str:
        """The last lines of a pod's own log; a cluster has none."""
        return "\n".join(self._log(resource.id)[-LAST_LINES:]) if resource.kind != CLUSTER else ""

    def _log(self, pod: str, source: str | None = None) -> list[str]:
        """The last lines of a pod's log. `source`: `system` for its host's alone; None for the container's own, too."""
        path = f"/pods/{path_segment(pod)}/logs"
        return boot_log.parse_lines(
            self._api.read_stream(path, LOG_LISTEN_S, "read a pod's log", tail=LOG_LINES, source=source)
        )

    # Ending.

    def destroy(self, resources: Sequence[Resource]) -> None:
        """Clusters first: a member cannot go while its cluster is there, and one that is left behind can."""
        clusters = dict.fromkeys(resource.id if resource.kind == CLUSTER else resource.parent for resource in resources)
        ends: list[Callable[[], None]] = [partial(self._end_cluster, cluster) for cluster in clusters if cluster]
        ends += [partial(self._end_pod, resource) for resource in resources if resource.kind != CLUSTER]
        each(ends)

    def _end_cluster(self, cluster: str) -> None:
        self._api.delete(f"/clusters/{path_segment(cluster)}", "end a cluster", accepted=(404, 409))

    def _end_pod(self, pod: Resource) -> None:
        """A member that cannot go by itself (409) is ended with its cluster; any other is left for the next round."""
        path = f"/pods/{path_segment(pod.id)}"
        refused = self._api.delete(path, "end a pod", accepted=(404, 409)) == 409
        document = self._api.find_object(path, "look at a pod") if refused and not pod.parent else None
        if document and (cluster := parse_pod(document).cluster):
            self._end_cluster(cluster)
