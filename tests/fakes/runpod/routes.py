"""The paths of pods, clusters, volumes and keys: from a request to the service and back."""

from __future__ import annotations

from tests.fakes.runpod import checks
from tests.fakes.runpod.problems import NOT_VALID, Refusal
from tests.fakes.runpod.requests import Answer, Caller, Request
from tests.fakes.runpod.routing import route
from tests.fakes.runpod.service import Service
from tests.fakes.runpod.views import cluster_view, pod_view, template_view, volume_view

# ---- pods


@route("GET", "/pods")
def list_pods(service: Service, caller: Caller, request: Request) -> Answer:
    members = request.query.get("includeClusterPods") == "true"  # what else is asked for is not looked at
    now = service.clock.now()
    found = [
        pod
        for pod in service.pods_of(caller.account)
        if (members or not pod.cluster) and now >= pod.created + pod.life.listed_s
    ]
    return Answer(200, {"pods": [pod_view(pod, now) for pod in found]})


@route("POST", "/pods")
def create_pod(service: Service, caller: Caller, request: Request) -> Answer:
    body = checks.expect(checks.CREATE_POD, request.body)
    pod = service.create_pod(caller.account, body, request.fault.life if request.fault else None)
    return Answer(201, pod_view(pod, service.clock.now()))


@route("GET", "/pods/{id}")
def get_pod(service: Service, caller: Caller, request: Request, one: str) -> Answer:  # noqa: ARG001
    return Answer(200, pod_view(service.pod(caller.account, one), service.clock.now()))


@route("PATCH", "/pods/{id}")
def update_pod(service: Service, caller: Caller, request: Request, one: str) -> Answer:
    body = checks.expect(checks.UPDATE_POD, request.body)
    return Answer(200, pod_view(service.update_pod(caller.account, one, body), service.clock.now()))


@route("DELETE", "/pods/{id}")
def delete_pod(service: Service, caller: Caller, request: Request, one: str) -> Answer:  # noqa: ARG001
    service.delete_pod(caller.account, one)
    return Answer(204)


@route("POST", "/pods/{id}/action")
def act(service: Service, caller: Caller, request: Request, one: str) -> Answer:
    action = checks.expect(checks.POD_ACTION, request.body)["action"]
    pod = service.act(caller.account, one, action)
    return Answer(200, pod_view(pod, service.clock.now())) if pod else Answer(204)


@route("GET", "/pods/{id}/logs")
def follow_logs(service: Service, caller: Caller, request: Request, one: str) -> Answer:
    tail = request.query.get("tail", "100")
    if not tail.isdigit() or int(tail) > 5000:
        raise Refusal(422, NOT_VALID, ["tail: must be between 0 and 5000"])
    if request.query.get("source", "container") not in ("container", "system"):
        raise Refusal(422, NOT_VALID, ["source: value must be one of 'container', 'system'"])
    return Answer(200, follow=service.pod(caller.account, one), content_type="text/event-stream")


# ---- clusters


@route("GET", "/clusters")
def list_clusters(service: Service, caller: Caller, request: Request) -> Answer:  # noqa: ARG001
    now = service.clock.now()
    return Answer(200, {"clusters": [cluster_view(one, now) for one in service.clusters_of(caller.account)]})


@route("POST", "/clusters")
def create_cluster(service: Service, caller: Caller, request: Request) -> Answer:
    body = checks.expect(checks.CREATE_CLUSTER, request.body)
    life, lives = (request.fault.life, request.fault.members) if request.fault else (None, {})
    cluster = service.create_cluster(caller.account, body, life, lives)
    return Answer(201, cluster_view(cluster, service.clock.now()))


@route("GET", "/clusters/{id}")
def get_cluster(service: Service, caller: Caller, request: Request, one: str) -> Answer:  # noqa: ARG001
    return Answer(200, cluster_view(service.cluster(caller.account, one), service.clock.now()))


@route("PATCH", "/clusters/{id}")
def rename_cluster(service: Service, caller: Caller, request: Request, one: str) -> Answer:
    body = checks.expect(checks.UPDATE_CLUSTER, request.body)
    cluster = service.cluster(caller.account, one)
    cluster.request |= body
    return Answer(200, cluster_view(cluster, service.clock.now()))


@route("DELETE", "/clusters/{id}")
def delete_cluster(service: Service, caller: Caller, request: Request, one: str) -> Answer:
    service.delete_cluster(caller.account, one, bool(request.fault and request.fault.leave_members))
    return Answer(204)


@route("GET", "/clusters/{id}/pods")
def cluster_pods(service: Service, caller: Caller, request: Request, one: str) -> Answer:  # noqa: ARG001
    now = service.clock.now()
    members = [pod for pod in service.cluster(caller.account, one).members if service.course.known(pod)]
    return Answer(200, {"pods": [pod_view(pod, now) for pod in members]})


# ---- volumes, keys


@route("GET", "/network-volumes")
def list_volumes(service: Service, caller: Caller, request: Request) -> Answer:  # noqa: ARG001
    return Answer(200, {"networkVolumes": [volume_view(one) for one in service.volumes_of(caller.account)]})


@route("POST", "/network-volumes")
def create_volume(service: Service, caller: Caller, request: Request) -> Answer:
    body = checks.expect(checks.CREATE_VOLUME, request.body)
    return Answer(201, volume_view(service.create_volume(caller.account, body)))


@route("GET", "/network-volumes/{id}")
def get_volume(service: Service, caller: Caller, request: Request, one: str) -> Answer:  # noqa: ARG001
    return Answer(200, volume_view(service.volume(caller.account, one)))


@route("PATCH", "/network-volumes/{id}")
def update_volume(service: Service, caller: Caller, request: Request, one: str) -> Answer:
    body = checks.expect(checks.UPDATE_VOLUME, request.body)
    volume = service.volume(caller.account, one)
    if body.get("size", volume.size) < volume.size:
        raise Refusal(400, "network volume size cannot be reduced")
    volume.size, volume.name = body.get("size", volume.size), body.get("name", volume.name)
    return Answer(200, volume_view(volume))


@route("DELETE", "/network-volumes/{id}")
def delete_volume(service: Service, caller: Caller, request: Request, one: str) -> Answer:  # noqa: ARG001
    service.delete_volume(caller.account, one)
    return Answer(204)


@route("GET", "/account/ssh-keys")
def get_keys(service: Service, caller: Caller, request: Request) -> Answer:  # noqa: ARG001
    return Answer(200, {"keys": caller.account.ssh_keys})


@route("PUT", "/account/ssh-keys")
def put_keys(service: Service, caller: Caller, request: Request) -> Answer:  # noqa: ARG001
    caller.account.ssh_keys = list(checks.expect(checks.SSH_KEYS, request.body)["keys"])
    return Answer(200, {"keys": caller.account.ssh_keys})


@route("GET", "/templates")
def list_templates(service: Service, caller: Caller, request: Request) -> Answer:  # noqa: ARG001
    return Answer(200, {"templates": [template_view(one, told) for one, told in service.templates.items()]})


@route("GET", "/catalog/templates")
def list_public_templates(service: Service, caller: Caller, request: Request) -> Answer:  # noqa: ARG001
    return Answer(200, {"templates": []})


@route("GET", "/registries")
def list_registries(service: Service, caller: Caller, request: Request) -> Answer:  # noqa: ARG001
    return Answer(200, {"registries": [{"id": one, "name": name} for one, name in service.registries.items()]})
