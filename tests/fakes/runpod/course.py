"""How pods get on while time passes: the steps of their lives, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

from tests.fakes.runpod.catalog import version
from tests.fakes.runpod.clock import DrivenClock
from tests.fakes.runpod.faults import CUDA_ERROR, GONE
from tests.fakes.runpod.records import Account, Pod


class Course:
    """Everything that is due by the clock happens in `settle`, in its order and at its own moment."""

    def __init__(self, clock: DrivenClock, accounts: Iterable[Account], release: Callable[[Pod], None]) -> None:
        self.clock = clock
        self.pods: dict[str, Pod] = {}
        """All that there ever were, the ones that ended too."""
        self.forgotten: set[str] = set()
        """Ids that the service does not know any more."""
        self._accounts = list(accounts)
        self._release = release
        self._metered = clock.now()
        self._ports = count(34446)

    def add(self, pod: Pod) -> None:
        self.pods[pod.id] = pod
        pod.public_port = next(self._ports)
        self._ports = count(pod.public_port + 1 + len(pod.request["ports"]))
        self._plan(pod, pod.created)
        if pod.life.end:
            pod.steps.append((pod.created + pod.life.end_s, pod.life.end))

    def _plan(self, pod: Pod, moment: float) -> None:
        """The way up, from `moment` on. The end that was told for it stays."""
        pod.steps = [step for step in pod.steps if step[1] in ("EXITED", "ERROR", "TERMINATED", GONE)]
        life = pod.life
        if life.starting:
            pod.steps.append((moment + (life.assign_s or 0.0) / 2, "STARTING"))
        if life.assign_s is None:
            return
        moment += life.assign_s
        pod.steps.append((moment, "RUNNING"))
        if life.pull_s is None:
            return
        moment += life.pull_s
        pod.steps.append((moment, "runtime"))
        if life.map_s is not None:
            pod.steps.append((moment + life.map_s, "mapped"))

    # ---- time

    def settle(self) -> None:
        """Let all happen that is due by now."""
        now = self.clock.now()
        while step := min(self._due(now), key=lambda one: one[0], default=None):
            moment, act = step
            self._meter(moment)
            act()
        self._meter(now)

    def _due(self, now: float) -> Iterator[tuple[float, Callable[[], None]]]:
        for pod in self.pods.values():
            for step in pod.steps:
                if step[0] <= now:
                    yield step[0], partial(self._step, pod, step)
        for account in self._accounts:
            rate = self.rate(account)
            if rate and self._stoppable(account):
                broke_at = self._metered + max(0.0, account.balance) / rate * 3600
                if broke_at <= now:
                    yield broke_at, partial(self._stop_all, account)

    def _meter(self, moment: float) -> None:
        hours = max(0.0, moment - self._metered) / 3600
        for pod in self.pods.values():
            pod.billed += pod.per_hour * hours
            pod.account.balance -= pod.per_hour * hours
        self._metered = max(moment, self._metered)

    def rate(self, account: Account) -> float:
        return sum(pod.per_hour for pod in self.pods.values() if pod.account is account)

    def _stop_all(self, account: Account) -> None:
        """No money: what lies on a network volume is stopped, the rest is gone."""
        account.balance = 0.0
        for pod in self._stoppable(account):
            if pod.volume:
                self.stop(pod)
            else:
                self.end(pod)

    def _stoppable(self, account: Account) -> list[Pod]:
        """What is there without being stopped for good already."""
        own = [pod for pod in self.pods.values() if pod.account is account and pod.bills]
        return [pod for pod in own if not (pod.volume and pod.status == "EXITED")]

    # ---- steps

    def _step(self, pod: Pod, step: tuple[float, str]) -> None:
        moment, what = step
        pod.steps.remove(step)
        if what == "STARTING":
            pod.status = what
            if pod.life.assign_s is None:
                self._say(pod, moment)
        elif what == "RUNNING":
            pod.status, pod.started = what, moment
            self._say(pod, moment)
        elif what == "runtime":
            self._start_container(pod, moment)
        elif what == "mapped":
            pod.mapped = pod.runtime is not None
        else:
            self.become(pod, what)

    def _say(self, pod: Pod, moment: float) -> None:
        for line in pod.life.log or ("create container {image}", "{image} Pulling from registry"):
            pod.say(moment, line.format(image=pod.request["image"]))

    def _start_container(self, pod: Pod, moment: float) -> None:
        if pod.cuda and pod.needed_cuda and version(pod.cuda) < version(pod.needed_cuda):
            pod.say(moment, CUDA_ERROR.format(needed=pod.needed_cuda))  # and so it stays
            return
        pod.say(moment, f"start container for {pod.request['image']}: begin")
        pod.body.boot(wiped=True)
        pod.runtime = moment

    # ---- ends

    def become(self, pod: Pod, end: str) -> None:
        """EXITED or ERROR, of itself; TERMINATED or GONE."""
        if end in ("EXITED", "ERROR"):
            self.stop(pod)
            pod.status = end
        else:
            self.end(pod, forgotten=end == GONE)

    def stop(self, pod: Pod) -> None:
        self._down(pod)
        pod.status = "EXITED"

    def end(self, pod: Pod, forgotten: bool = False) -> None:
        self._down(pod)
        if pod.bills:
            self._release(pod)
        pod.steps.clear()
        pod.status = "TERMINATED"
        pod.ended = self.clock.now()
        if forgotten:
            self.forgotten.add(pod.id)

    def _down(self, pod: Pod) -> None:
        pod.body.halt()
        pod.runtime, pod.started, pod.mapped = None, None, False
        pod.steps = [step for step in pod.steps if step[1] in ("TERMINATED", GONE)]

    def start(self, pod: Pod) -> None:
        """Again, behind another port."""
        pod.status = "PROVISIONING"
        pod.public_port = next(self._ports)
        self._plan(pod, self.clock.now())

    def restart(self, pod: Pod) -> None:
        """The container alone, in place."""
        pod.body.halt()
        pod.body.boot(wiped=False)
        pod.runtime = self.clock.now()

    def known(self, pod: Pod) -> bool:
        """Whether the service still tells of it."""
        if pod.id in self.forgotten:
            return False
        return pod.bills or (pod.ended is not None and self.clock.now() < pod.ended + pod.life.linger_s)
