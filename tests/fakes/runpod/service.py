"""What the service does when it is asked: places pods, makes clusters and volumes, ends them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any

from tests.fakes.runpod.catalog import DATA_CENTERS, version
from tests.fakes.runpod.clock import DrivenClock
from tests.fakes.runpod.course import Course
from tests.fakes.runpod.faults import Life
from tests.fakes.runpod.problems import IN_CLUSTER, NO_MONEY, Refusal, no_capacity, not_found
from tests.fakes.runpod.records import Account, Body, Cluster, Nothing, Pod, Volume
from tests.fakes.runpod.shelf import Shelf
from tests.fakes.runpod.views import ACTIONS

DEFAULTS: Mapping[str, Any] = {
    "args": "",
    "disk": 50,
    "env": {},
    "ports": [],
    "registry": None,
    "mounts": {},
    "cloud": "SECURE",
    "globalNetworking": False,
}
MOST_ENV = 50
NETWORK = 0.02
"""$/h for a GPU of a cluster: what its network costs on top."""


class Service:
    """Its methods are called with `lock` held, by whichever thread serves the request."""

    def __init__(self, clock: DrivenClock, make_body: Callable[[Pod], Body] | None = None) -> None:
        self.lock = RLock()
        self.clock = clock
        self.own, self.other = Account(), Account(email="stranger@example.com")
        self.shelf = Shelf()
        self.course = Course(clock, (self.own, self.other), self.shelf.put_back)
        self.clusters: dict[str, Cluster] = {}
        self.volumes: dict[str, Volume] = {}
        self.no_such_images: set[str] = set()
        self.templates: dict[str, dict[str, Any]] = {}
        """Their id -> what of a pod's body they stand for; their names are `named ID`."""
        self.registries: dict[str, str] = {}
        """Their id -> their name."""
        self.life = Life()
        """Of pods for which no fault has another."""
        self.make_body = make_body or (lambda _: Nothing())
        self._networks = 0

    # ---- pods

    def pods_of(self, account: Account) -> list[Pod]:
        return [pod for pod in self.course.pods.values() if pod.account is account and self.course.known(pod)]

    def pod(self, account: Account, one: str) -> Pod:
        found = self.course.pods.get(one)
        if found is None or found.account is not account or not self.course.known(found):
            raise Refusal(404, "pod not found")
        return found

    def create_pod(self, account: Account, body: Mapping[str, Any], life: Life | None) -> Pod:
        template = self.templates.get(body["templateId"]) if "templateId" in body else {}
        if template is None or body.get("registry") not in (None, *self.registries):
            raise not_found()
        request = copy.deepcopy({**DEFAULTS, **template, **body})
        request["env"] = {**template.get("env", {}), **body.get("env", {})}
        if "cpu" in request and "gpu" in request:
            raise Refusal(400, "exactly one of gpu or cpu must be provided")
        if "gpu" not in request:
            raise Refusal(400, "exactly one of gpu or cpu must be provided") if "cpu" not in request else no_capacity()
        _check_rules(request)
        if request["gpu"].get("minCudaVersion") and request["gpu"].get("allowedCudaVersions"):
            raise Refusal(400, "minCudaVersion and allowedCudaVersions are mutually exclusive")
        if request["image"] in self.no_such_images:
            raise Refusal(422, f"image {request['image']} was not found on its registry")
        if "count" not in request["gpu"]:
            raise no_capacity()
        kind, count = self.shelf.gpu(request["gpu"]["id"]), int(request["gpu"]["count"])
        price = kind.price(request["cloud"]) * count
        if not price or count > kind.most:
            raise no_capacity()
        volume = self._volume_of(account, request)
        place = self.shelf.place(kind, count, 1, request.get("dataCenterIds"), volume, request["gpu"])
        self._afford(account, price)
        self._add_keys(account, request)
        return self._make(account, request, life or self.life, place, price)

    def _make(
        self, account: Account, request: dict[str, Any], life: Life, place: str, price: float, **more: Any
    ) -> Pod:
        kind = self.shelf.gpu(request["gpu"]["id"])
        cuda = (life.cuda or self.shelf.driver(place, request["gpu"])) if kind.manufacturer == "NVIDIA" else None
        pod = Pod(account, request, life, self.clock.now(), place, cuda, price, **more)
        self.shelf.take(pod)
        pod.body = self.make_body(pod)
        self.course.add(pod)
        return pod

    def _afford(self, account: Account, per_hour: float) -> None:
        if account.balance < per_hour:  # an hour of it must be there
            raise Refusal(402, NO_MONEY)
        if self.course.rate(account) + per_hour > account.spend_limit:
            raise Refusal(402, "spend limit reached")

    def _volume_of(self, account: Account, request: Mapping[str, Any]) -> Volume | None:
        wanted = request["mounts"].get("network")
        if not wanted:
            return None
        if request.get("cloud") == "COMMUNITY":
            raise Refusal(400, "network volumes are only available on secure cloud")
        return self.volume(account, wanted[0]["volumeId"])

    def _add_keys(self, account: Account, request: dict[str, Any]) -> None:
        if request.get("startSsh") and account.ssh_keys:
            request["env"].setdefault("PUBLIC_KEY", "\n".join(account.ssh_keys))

    def delete_pod(self, account: Account, one: str) -> None:
        pod = self.pod(account, one)
        if not pod.bills:
            raise Refusal(404, "pod not found")
        if pod.cluster and pod.cluster.id in self.clusters:
            raise Refusal(409, IN_CLUSTER)
        self.course.end(pod)

    def act(self, account: Account, one: str, action: str) -> Pod | None:
        pod = self.pod(account, one)
        if action == "terminate":
            self.delete_pod(account, one)
            return None
        if pod.cluster:
            raise Refusal(409, IN_CLUSTER)
        if action not in ACTIONS[pod.status]:
            raise Refusal(409, f"action {action} is not valid for a pod that is {pod.status}")
        if action == "start":
            self._afford(account, pod.price)
        getattr(self.course, action)(pod)
        return pod

    def update_pod(self, account: Account, one: str, body: Mapping[str, Any]) -> Pod:
        pod = self.pod(account, one)
        if pod.cluster:
            raise Refusal(409, "Pod belongs to a cluster and cannot be modified via the pod endpoints.")
        if "templateId" in body:
            raise not_found()
        if body.get("mounts"):
            raise Refusal(400, "mounts cannot be changed")
        pod.locked = body.get("locked", pod.locked)
        pod.request |= {key: value for key, value in body.items() if key not in ("locked", "mounts")}
        return pod

    # ---- clusters

    def clusters_of(self, account: Account) -> list[Cluster]:
        return [one for one in self.clusters.values() if one.account is account]

    def cluster(self, account: Account, one: str) -> Cluster:
        found = self.clusters.get(one)
        if found is None or found.account is not account:
            raise not_found()
        return found

    def create_cluster(
        self, account: Account, body: Mapping[str, Any], life: Life | None, lives: Mapping[int, Life]
    ) -> Cluster:
        compute = body["compute"]
        count, machines = int(compute["gpuCountPerPod"]), int(compute["podCount"])
        request = {**copy.deepcopy(dict(DEFAULTS)), **copy.deepcopy(dict(body))}
        _check_rules(request)
        kind = self.shelf.gpu(compute["gpuTypeId"])
        if not kind.clusters or count > kind.most:
            raise no_capacity()
        volume = self._volume_of(account, request)
        place = self.shelf.place(kind, count, machines, request.get("dataCenterIds"), volume, {})
        price = (kind.in_cluster or 0.0) * count
        self._afford(account, price * machines)
        self._add_keys(account, request)
        self._networks += 1
        cluster = Cluster(account, request, self.clock.now(), place, f"10.{64 + self._networks}", 41 + self._networks)
        self.clusters[cluster.id] = cluster
        for rank in range(machines):
            one = {**copy.deepcopy(request), "name": f"{body['name']}-node-{rank}"}
            # A cluster cannot say which driver it needs: it gets the newest there is.
            newest = max(self.shelf.cuda[place], key=version)
            one["gpu"] = {"id": kind.id, "count": count, "minCudaVersion": newest}
            more = {"cluster": cluster, "rank": rank, "ip": cluster.address(rank), "network": NETWORK * count}
            member = self._make(account, one, lives.get(rank, life or self.life), place, price, **more)
            cluster.members.append(member)
        return cluster

    def delete_cluster(self, account: Account, one: str, leave_members: bool = False) -> None:
        cluster = self.cluster(account, one)
        del self.clusters[cluster.id]
        if not leave_members:
            for pod in cluster.members:
                if pod.bills:
                    self.course.end(pod)

    # ---- volumes

    def volumes_of(self, account: Account) -> list[Volume]:
        return [one for one in self.volumes.values() if one.account is account]

    def volume(self, account: Account, one: str) -> Volume:
        found = self.volumes.get(one)
        if found is None or found.account is not account:
            raise not_found()
        return found

    def create_volume(self, account: Account, body: Mapping[str, Any]) -> Volume:
        able = [one.id for one in DATA_CENTERS if one.volumes]
        where, kind = body["dataCenter"], body.get("type", "STANDARD")
        kinds = next((one.volumes for one in DATA_CENTERS if one.id == where), ())
        if kind not in kinds:
            raise Refusal(400, f"data center {where} does not support network volumes of type {kind}; "
                               f"supported data centers: {', '.join(able)}")  # fmt: skip
        volume = Volume(account, body["name"], body["size"], where, kind)
        self.volumes[volume.id] = volume
        return volume

    def delete_volume(self, account: Account, one: str) -> None:
        volume = self.volume(account, one)
        if any(pod.volume and pod.volume["volumeId"] == volume.id for pod in self.pods_of(account) if pod.bills):
            raise Refusal(400, "network volume is in use by a pod")
        del self.volumes[volume.id]


def _check_rules(request: Mapping[str, Any]) -> None:
    """What no schema says."""
    mounts = request["mounts"]
    if mounts.get("network") and mounts.get("persistent"):
        raise Refusal(400, "mounts.persistent and mounts.network are mutually exclusive")
    if len(request["env"]) > MOST_ENV:
        raise Refusal(400, f"a pod can have at most {MOST_ENV} environment variables")
