"""What goes wrong, as data: with a request (`Fault`) or with a pod that was made (`Life`).

    fake.play(capacity(times=2), Fault("POST /pods", nth=3, status=500, takes_effect=True))
    fake.play(Fault("POST /pods", life=PULL_ERROR))

What the service is known for, by the number under which tests look for it; "itself": the fake does it unasked.

     1  nothing free                                                            capacity()
     2  a rule is broken, in the status of "nothing free"                       itself
     3  422 for a key it does not know                                          itself
     4  no gpu.count: "nothing free"                                            itself
     5  402, 403, and a gateway that dislikes a User-Agent                      broke(), denied(), BANNED
     6  429                                                                     too_many()
     7  500, silence or a cut on create, and the pod exists                     lost_create()
     8  RUNNING without runtime, then without an address, then nothing listens  SLOW, UNMAPPED, DEAF, PRIVATE
     9  never up: image, driver                                                 PULL_ERROR, CUDA_MISMATCH
    10  a pod that ends or is gone                                              Life(end=…), fake.end(pod, …)
    11  DELETE: 204, then 404                                                   itself; deaf_delete()
    12  a cluster that comes up unevenly; one that leaves its members behind    half_cluster(), leaving_members()
    13  lists that leave out members, and lag                                   itself; Life(listed_s=…)
    14  stop and start: another port, EXITED bills its disk                     itself
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.runpod.problems import NO_CAPACITY, NO_MONEY, TOO_MANY

GONE = "GONE"
"""An end after which the service does not know the pod any more."""


@dataclass(frozen=True)
class Life:
    """How a pod comes up, in seconds after one another; None: that never comes."""

    assign_s: float | None = 0.1
    """Until RUNNING."""
    starting: bool = False
    """Whether STARTING comes between, for the second half."""
    pull_s: float | None = 0.1
    """From RUNNING until the container is there (`runtime`)."""
    map_s: float | None = 0.1
    """From there until `ssh.direct`."""
    listed_s: float = 0.0
    """From the create on, how long the list does not have it."""
    ranked_s: float = 3.0
    """From the create on, how long a member's rank and address are null: they are assigned during provisioning."""
    address: str | None = None
    """Other than its own."""
    port: int | None = None
    deaf: bool = False
    """The mapped port leads to none that listens."""
    cuda: str | None = None
    """Of the driver, whatever was asked for."""
    log: tuple[str, ...] = ()
    """Lines of the system's log once the image is being pulled."""
    end: str = ""
    """EXITED, ERROR, TERMINATED or GONE: what becomes of it,"""
    end_s: float = 0.0
    """so long after the create."""
    linger_s: float = 0.0
    """How long an ended one is still told, as TERMINATED."""


SLOW = Life(pull_s=600.0)
UNMAPPED = Life(map_s=None)
DEAF = Life(deaf=True)
PRIVATE = Life(address="100.65.0.119")
"""An address of the provider's own network: no public one."""
PULL_ERROR = Life(
    pull_s=None,
    log=(
        "create container {image}",
        "image pull: {image}: pending",
        "error pulling image: Error response from daemon: manifest for {image} not found: manifest unknown",
    ),
)
LAYER_ERROR = Life(
    assign_s=None,
    starting=True,
    log=(
        "create container {image}",
        "error creating container: failed to register layer: container ID 1000001 cannot be mapped to a host ID",
    ),
)
"""Its machine cannot unpack the image, and it stays on its way."""
NOT_MADE = Life(pull_s=None, log=("error creating container: nvidia-smi: Failed to initialize NVML",) * 3)
CRASH_LOOP = Life(map_s=None, log=("start container for {image}: begin",) * 2)
"""RUNNING all the time, while its container ends and is started again."""
CUDA_ERROR = (
    "error starting container: failed to create shim task: OCI runtime create failed: nvidia-container-cli: "
    "requirement error: unsatisfied condition: cuda>={needed}, please update your driver to a newer version, or use an "
    "earlier cuda container: unknown"
)
CUDA_MISMATCH = Life(cuda="12.4")
"""With an image that needs more, as its name says (cu128)."""


@dataclass(frozen=True)
class Fault:
    """What the `nth` request that fits meets, and as many after it as `times` says (None: all)."""

    at: str
    """`POST /pods`, `GET /pods/*` (one segment), `* /clusters/*/pods`, `POST /graphql`."""
    nth: int = 1
    times: int | None = 1
    gpus: tuple[str, ...] = ()
    """Only requests for one of these GPU types,"""
    data_centers: tuple[str, ...] = ()
    """and only those that name one of these data centers and no other."""

    action: str = ""
    """Only `terminate`, only `stop`, …"""

    status: int = 0
    """Answered instead; 0: what is right is answered."""
    detail: str = ""
    retry_after: int | None = None
    raw: str | None = None
    """The body as it is, of type `content_type`."""
    content_type: str = "text/html"
    takes_effect: bool = False
    """What was asked for is done, and only the answer goes wrong."""
    cut: bool = False
    """No answer: the connection ends."""
    hang_s: float = 0.0
    """Nothing for so long first."""
    lie: bool = False
    """204, and nothing was done."""
    leave_members: bool = False
    """DELETE of a cluster: its members live and bill."""
    life: Life | None = None
    """Of the pods that the request makes,"""
    members: Mapping[int, Life] = field(default_factory=dict)
    """and of single members of a cluster, by their rank."""

    @property
    def hangs(self) -> float:
        return self.hang_s

    @property
    def done(self) -> bool:
        return self.takes_effect

    @property
    def cuts(self) -> bool:
        return self.cut

    def fits(self, method: str, path: str, body: Any) -> bool:
        verb, _, place = self.at.partition(" ")
        pattern = re.escape(place).replace(r"\*", "[^/]+")
        if verb not in ("*", method) or not re.fullmatch(pattern, path):
            return False
        body = body if isinstance(body, dict) else {}
        gpu = (body.get("gpu") or {}).get("id") or (body.get("compute") or {}).get("gpuTypeId")
        centers = set(body.get("dataCenterIds") or [])
        if self.action and body.get("action") != self.action:
            return False
        return (not self.gpus or gpu in self.gpus) and (
            not self.data_centers or (bool(centers) and centers <= set(self.data_centers))
        )


class Script:
    """The faults that are to come. What several would do to one request is done by the first."""

    def __init__(self) -> None:
        self._played: list[tuple[Fault, list[int]]] = []

    def play(self, *faults: Fault) -> None:
        self._played += [(fault, [0]) for fault in faults]

    def clear(self) -> None:
        self._played.clear()

    def meet(self, method: str, path: str, body: Any) -> Fault | None:
        """What this request meets; it counts for every fault that it fits."""
        found = None
        for fault, count in self._played:
            if not fault.fits(method, path, body):
                continue
            count[0] += 1
            last = None if fault.times is None else fault.nth + fault.times - 1
            if found is None and count[0] >= fault.nth and (last is None or count[0] <= last):
                found = fault
        return found


CREATE = "POST /pods"


def capacity(
    times: int | None = 1,
    at: str = CREATE,
    gpus: tuple[str, ...] = (),
    data_centers: tuple[str, ...] = (),
    detail: str = NO_CAPACITY,
) -> Fault:
    return Fault(at, times=times, gpus=gpus, data_centers=data_centers, status=400, detail=detail)


def broke(at: str = CREATE) -> Fault:
    return Fault(at, status=402, detail=NO_MONEY, times=None)


def denied(at: str = CREATE, gpus: tuple[str, ...] = ()) -> Fault:
    return Fault(at, status=403, detail="access denied", gpus=gpus, times=None)


BANNED = Fault("* /pods", status=403, raw="error code: 1010", times=None)


def too_many(at: str = CREATE, retry_after: int | None = 12, times: int | None = 1) -> Fault:
    return Fault(at, status=429, detail=TOO_MANY, retry_after=retry_after, times=times)


def lost_create(status: int = 0, at: str = CREATE, hang_s: float = 0.0) -> Fault:
    """The pod exists, and its maker hears 5xx, or nothing."""
    return Fault(at, status=status, detail="internal server error", takes_effect=True, cut=not status, hang_s=hang_s)


def deaf_delete(times: int | None = 1, at: str = "DELETE /pods/*") -> Fault:
    """It says that the pod is deleted, and the pod lives."""
    return Fault(at, lie=True, times=times)


def half_cluster(dead: int, life: Life = PULL_ERROR) -> Fault:
    """One member never comes up."""
    return Fault("POST /clusters", members={dead: life})


def leaving_members() -> Fault:
    return Fault("DELETE /clusters/*", leave_members=True)


def lagging(life: Life, seconds: float) -> Life:
    return dataclasses.replace(life, listed_s=seconds)
