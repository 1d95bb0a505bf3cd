"""What a pod's log tells of it: why it never will be a node, and its last words."""

from __future__ import annotations

import threading

from gpuops.core.errors import ProviderError
from gpuops.core.polling import Clock
from provisioners.kit.json_api import path_segment
from provisioners.runpod import boot_log
from provisioners.runpod.api import Api
from provisioners.runpod.machines import Pod

IMAGE_PULL_LOG_INTERVAL_S = 60.0
"""How long a pod may be no node before its host's log is read, and from then on from one reading to the next: a normal
pull takes about as long. A pod may have no public address for as long as that, too."""
LOG_LISTEN_S = 5.0
"""RunPod streams a log and does not end it."""
LOG_LINES = 40
LAST_LINES = 20
"""Lines of a log that an error quotes."""


class PodLogs:
    """Raises ProviderError; may be used from any thread."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._observed: dict[str, boot_log.BootObservation] = {}
        self._never_up: dict[str, str] = {}

    def boot_fault(self, pod: Pod) -> boot_log.BootFault:
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

    def why_never_up(self, pod: str) -> str:
        """What its host says of a pod that has stopped and never was a node; read once."""
        if pod not in self._never_up:
            try:
                self._never_up[pod] = boot_log.find_start_failure(self._log(pod, "system"))
            except ProviderError:
                return ""
        return self._never_up[pod]

    def last_words(self, pod: str) -> str:
        """The last lines of a pod's own log."""
        return "\n".join(self._log(pod)[-LAST_LINES:])

    def _log(self, pod: str, source: str | None = None) -> list[str]:
        """The last lines of a pod's log. `source`: `system` for its host's alone; None for the container's own, too."""
        path = f"/pods/{path_segment(pod)}/logs"
        return boot_log.parse_lines(
            self._api.read_stream(path, LOG_LISTEN_S, "read a pod's log", tail=LOG_LINES, source=source)
        )
