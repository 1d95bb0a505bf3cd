"""What a container is told: its environment, its name, the names it knows."""

from __future__ import annotations

from tests.fakes.runpod.images import PATH, Image
from tests.fakes.runpod.records import Cluster, Pod
from tests.system.lab.disk import LOCALHOST

PRIMARY_PORT = "29400"


def hostname(pod: Pod) -> str:
    return f"node-{pod.rank}" if pod.cluster else pod.id[:12]


def hosts_file(pod: Pod) -> str:
    own = f"{pod.body.address} {hostname(pod)}\n"
    if not pod.cluster:
        return LOCALHOST + own
    count = int(pod.cluster.request["compute"]["podCount"])
    return LOCALHOST + "".join(f"{pod.cluster.address(rank)} node-{rank}\n" for rank in range(count))


def environment(pod: Pod, image: Image) -> dict[str, str]:
    """The image's, what was asked for, and what the service adds; its own names win."""
    added = {
        "HOSTNAME": hostname(pod),
        "RUNPOD_POD_ID": pod.id,
        "RUNPOD_API_KEY": pod.key,
        "RUNPOD_DC_ID": pod.data_center,
        "RUNPOD_POD_HOSTNAME": f"{pod.id}-64411eb2",
        "RUNPOD_GPU_NAME": pod.gpu.replace(" ", "+"),
        "RUNPOD_GPU_COUNT": str(pod.gpus),
        "RUNPOD_CPU_COUNT": "8",
        "RUNPOD_PUBLIC_IP": pod.body.address,
    }
    if pod.has_ssh:
        added["RUNPOD_TCP_PORT_22"] = str(pod.port)
    if pod.volume:
        added["RUNPOD_VOLUME_ID"] = pod.volume["volumeId"]
    if pod.cluster:
        added |= _cluster(pod, pod.cluster)
    return {"PATH": PATH, "HOME": "/root", **image.env, **pod.env, **added}


def _cluster(pod: Pod, cluster: Cluster) -> dict[str, str]:
    nodes = int(cluster.request["compute"]["podCount"])
    first = cluster.address(0)
    return {
        "PRIMARY_ADDR": first,
        "MASTER_ADDR": first,
        "PRIMARY_PORT": PRIMARY_PORT,
        "MASTER_PORT": PRIMARY_PORT,
        "HOST_NODE_ADDR": f"{first}:{PRIMARY_PORT}",
        "NODE_ADDR": pod.ip,
        "NODE_RANK": str(pod.rank),
        "NUM_NODES": str(nodes),
        "NUM_TRAINERS": str(pod.gpus),
        "WORLD_SIZE": str(nodes * pod.gpus),
    }
