"""The laptop is gone, and a rented machine bills: who ends it, and how many seconds after its end.

Gone means that the command and the guard are killed. The service stays: it is where the laptop's network was. What
nobody can end until the laptop is back, `up` has said.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from gpuops.agent.lease_clock import BOOT_MARGIN_S
from gpuops.core.heartbeat import BEAT_INTERVAL_S, SILENCE_MAX_S
from tests.conftest import until
from tests.fakes.runpod.faults import Fault
from tests.system.chaos.hits import guards, is_held
from tests.system.chaos.tenant import Tenant
from tests.system.chaos.together import Together, chosen
from tests.system.lab.hosts import Lab
from tests.system.lab.rented import Boot, RentedCloud, RentedMachine
from tests.system.lab.rented_aws import RentedAws
from tests.system.lab.rented_runpod import RentedRunPod
from tests.system.lab.rented_vast import RentedVast

pytestmark = pytest.mark.timeout(2400)  # who comes first waits for all that run beside it

HANG_S = 800.0
EARLY_S = 5.0
"""A node may begin to end so long before its last second."""
AT_ONCE = 14
APART_S = 3.0
"""From the start of one scenario to the next: all are played in one process, and would search for offers at once."""
BEFORE_RESTART_S = 10.0
"""Were the end counted anew by a restart, it would come so much later."""
AFTER_END_S = 15.0
"""So long after its end a machine that nobody ends is seen to bill."""
DATE_BEHIND = r"""#!/bin/sh
[ "$*" = +%s ] && exec sh -c "echo \$((\$(date.true +%s) - 3600))"
exec date.true "$@"
"""
SET_CLOCK_BACK = "mv /usr/bin/date /usr/bin/date.true; cat >/usr/bin/date; chmod 755 /usr/bin/date; date +%s"
"""A line for a shell, to which DATE_BEHIND is the input."""


@dataclass
class Rental:
    """Somebody who rents one machine and loses their laptop."""

    cloud: RentedCloud
    tenant: Tenant

    @property
    def machine(self) -> RentedMachine:
        (machine,) = self.cloud.machines(self.tenant)
        return machine

    @property
    def bills(self) -> bool:
        return self.machine.bills

    @property
    def boot_end(self) -> float:
        (row,) = self.tenant.clusters()
        return row.boot_deadline

    @property
    def lease_end(self) -> float:
        (row,) = self.tenant.clusters()
        assert row.lease.end
        return row.lease.end

    def lose_laptop(self) -> None:
        self.tenant.shell.die()
        for process in self.tenant.shell.started:
            process.wait()

    def start_up(self, boot: Boot) -> subprocess.Popen[str]:
        """A command that waits for its machine, which has nothing of ours but what came with it."""
        self.cloud.next_boot(boot)
        flags = (*self.cloud.machine_flags, *self.cloud.boot_lease)
        process = self.tenant.shell.start("up", self.cloud.name, "--yes", *flags)
        until(lambda: self.cloud.machines(self.tenant) or process.poll() is not None, "the machine")
        assert process.poll() is None, process.communicate()
        return process

    def boot_alone(self, boot: Boot = Boot.UNREACHABLE) -> None:
        """A machine that boots, and nobody else."""
        self.start_up(boot)
        self.lose_laptop()

    def boot_until_watched(self) -> None:
        self.boot_alone()
        until(lambda: not self.bills or self.machine.has_booted, "its own dead-man")
        assert self.bills, "its end came first"

    def up(self, *lease: str) -> None:
        """A node that is up, and nobody else."""
        flags = (*self.cloud.machine_flags, *(lease or self.cloud.node_lease))
        done = self.tenant.shell.run("up", self.cloud.name, "--yes", *flags)
        assert done.returncode == 0, done.stderr
        self.lose_laptop()
        assert self.bills

    def kill(self, mode: str = "") -> None:
        """SIGKILL processes of ours, all at once: each starts the other anew."""
        done = self.machine.run(["pkill", "-KILL", "-f", f"[.]pyz {mode}"])
        assert done.returncode == 0, f"there is no {mode}: {self.machine.processes()}"

    def expect_node_again(self) -> None:
        until(lambda: not self.bills or "watchdog" in self.machine.agent_modes(), "the node is back")
        assert self.bills, "its end came first"

    def ended(self, due: float) -> float:
        """How long after this the meter stopped, no process of ours being left here."""
        until(lambda: not self.bills, "the machine has ended", HANG_S)
        assert not guards(self.tenant.shell)
        return self.machine.bill_ended - due


# ---- scenarios: each returns how many seconds after its end a machine's bill ended


def before_its_boot_has_ended(rental: Rental) -> float:
    rental.boot_alone()
    return rental.ended(rental.boot_end)


def before_that_and_it_starts_again(rental: Rental) -> float:
    """Its end is absolute: another start is no new count."""
    rental.boot_until_watched()
    time.sleep(BEFORE_RESTART_S)
    rental.machine.restart()
    return rental.ended(rental.boot_end)


def before_that_and_the_service_is_out_of_reach(rental: Rental) -> float:
    """A machine that only the service can end goes on trying until somebody hears it."""
    rental.boot_until_watched()
    lab, place = rental.cloud.lab, rental.machine.place
    lab.cut(place)
    if rental.cloud.ends_without_service:
        return rental.ended(rental.boot_end)
    until(lambda: time.time() > rental.boot_end + 2 * AFTER_END_S, "its end is over")
    assert rental.bills
    lab.mend(place)
    return rental.ended(time.time())


def before_that_and_its_clock_is_set_back(rental: Rental) -> float:
    """`date` there says an hour less from now on; the seconds that pass are counted all the same."""
    rental.boot_until_watched()
    time.sleep(BEFORE_RESTART_S)
    clock = rental.machine.run(["sh", "-c", SET_CLOCK_BACK], input=DATE_BEHIND, check=True).stdout
    assert abs(int(clock) + 3600 - time.time()) < 60, clock
    return rental.ended(rental.boot_end)


def its_user_data_fails(rental: Rental) -> float:
    rental.boot_alone(Boot.FAILS)
    return rental.ended(rental.boot_end)


def its_boot_hangs(rental: Rental) -> float:
    rental.boot_alone(Boot.HANGS)
    return rental.ended(rental.boot_end)


def it_never_boots_and_the_guard_lives(rental: Rental) -> float:
    """The command is there and does nothing any more, not even its heartbeat."""
    process = rental.start_up(Boot.NEVER)
    until(lambda: guards(rental.tenant.shell), "the guard")
    until(lambda: is_held(rental.tenant.shell, process), "it stands still, and not with the ledger in its hand")
    # the ledger forgets it with the cluster
    due = min(rental.boot_end, time.time() + SILENCE_MAX_S - BEAT_INTERVAL_S)
    try:
        until(lambda: not rental.bills, "the guard ends it", HANG_S)
    finally:
        process.kill()
        process.wait()
    return rental.machine.bill_ended - due


def it_never_boots(rental: Rental) -> float:
    """No process of ours in it: it bills until this computer is back, which `up` has said."""
    process = rental.start_up(Boot.NEVER)
    assert process.stderr
    assert any("not yet protected: keep this computer on" in line for line in process.stderr)
    rental.lose_laptop()
    until(lambda: time.time() > rental.boot_end + AFTER_END_S, "its end is over")
    assert rental.bills
    back = time.time()
    assert rental.tenant.shell.run("status").returncode == 0
    until(lambda: not rental.bills, "the guard that is back ends it", HANG_S)
    return rental.machine.bill_ended - back


def nothing_else(rental: Rental) -> float:
    rental.up()
    return rental.ended(rental.lease_end)


def its_agent_is_killed(rental: Rental) -> float:
    rental.up()
    rental.kill("agent ")
    return rental.ended(rental.lease_end)


def its_watchdog_is_killed(rental: Rental) -> float:
    """Its agent, or what came with the machine, starts another."""
    rental.up()
    rental.kill("watchdog ")
    return rental.ended(rental.lease_end)


def both_are_killed(rental: Rental) -> float:
    """What came with the machine starts the node again."""
    rental.up(*rental.cloud.revival_lease)
    rental.kill()
    rental.expect_node_again()
    return rental.ended(rental.lease_end)


def both_are_killed_and_cannot_be_revived(rental: Rental) -> float:
    """What came with the machine ends it, two minutes behind; here sooner, so that nobody has to wait for it."""
    rental.up(*rental.cloud.revival_lease)
    machine = rental.machine
    behind_s = float(machine.run(["cat", machine.end_file], check=True).stdout) - rental.lease_end
    assert BOOT_MARGIN_S - EARLY_S < behind_s < 2 * BOOT_MARGIN_S  # a lease is on its way for a while
    revive = f"{machine.watch_folder}/revive"
    machine.run(["rm", revive], check=True)

    def are_gone() -> bool:
        """And nobody was just about to start them anew."""
        machine.run(["pkill", "-KILL", "-f", "[.]pyz "])
        time.sleep(1)
        return not any(".pyz" in line or revive in line for line in machine.processes())

    until(are_gone, f"both are gone, but: {machine.processes()}")
    due = int(time.time()) + 15
    machine.run(["sh", "-c", f"echo {due} >{machine.end_file}"], check=True)
    return rental.ended(due)


def what_came_with_it_is_killed(rental: Rental) -> float:
    rental.up()
    rental.machine.end_boot_watch()
    return rental.ended(rental.lease_end)


def it_starts_again(rental: Rental) -> float:
    rental.up(*rental.cloud.revival_lease)
    rental.machine.restart()
    rental.expect_node_again()
    return rental.ended(rental.lease_end)


def it_is_idle(rental: Rental) -> float:
    """Its hard end is a day away."""
    rental.up("--idle", "0.5")
    return rental.ended(time.time())


def it_is_idle_and_every_way_is_refused_at_first(rental: Rental) -> float:
    """The node's own watchdog must go on trying."""
    rental.up("--idle", "0.5")
    rental.cloud.fake.play(
        Fault("POST /pods/*/action", action="terminate", times=2, lie=True),
        Fault("POST /graphql", times=2, status=401),
        Fault("POST /pods/*/action", action="stop", times=2, status=404, detail="pod not found"),
    )
    return rental.ended(time.time())


Scenario = Callable[[Rental], float]
SCENARIOS: tuple[Scenario, ...] = (
    both_are_killed,
    it_starts_again,
    both_are_killed_and_cannot_be_revived,
    it_never_boots_and_the_guard_lives,
    before_that_and_the_service_is_out_of_reach,
    before_that_and_it_starts_again,
    before_that_and_its_clock_is_set_back,
    nothing_else,
    its_agent_is_killed,
    its_watchdog_is_killed,
    what_came_with_it_is_killed,
    it_never_boots,
    before_its_boot_has_ended,
    its_user_data_fails,
    its_boot_hangs,
    it_is_idle,
    it_is_idle_and_every_way_is_refused_at_first,
)
"""The ones that take long come first."""
ONLY_AT: dict[Scenario, type[RentedCloud]] = {
    its_user_data_fails: RentedAws,  # a pod has no boot beside its image's start
    its_boot_hangs: RentedAws,
    before_that_and_its_clock_is_set_back: RentedRunPod,  # EC2 gives its machines the time; a pod has its host's
    it_is_idle_and_every_way_is_refused_at_first: RentedRunPod,  # an instance switches itself off and asks nobody
}
CLOUDS: tuple[type[RentedCloud], ...] = (RentedAws, RentedRunPod, RentedVast)
PART_OF_ANOTHER: dict[Scenario, Scenario] = {
    nothing_else: it_starts_again,
    before_its_boot_has_ended: before_that_and_it_starts_again,
    it_is_idle: it_is_idle_and_every_way_is_refused_at_first,
}
"""What happens in these happens in the others as well, and is played for the table of `make proof`."""
SAME_EVERYWHERE = (its_agent_is_killed, its_watchdog_is_killed, it_never_boots, it_never_boots_and_the_guard_lives)
"""Whose ways do not depend on the provider: agent, watchdog and guard; these are played where a machine is cheap. How
the guard ends instances of which none ever comes up is in tests/system/chaos/test_aws.py."""

AT_VAST = (before_that_and_it_starts_again,)
"""What is Vast.ai's own: that its machines start our script, also when they start again, and end by their own key. The
rest is the same as RunPod's."""


@dataclass(frozen=True)
class Case:
    cloud: type[RentedCloud]
    scenario: Scenario

    def __str__(self) -> str:
        return f"{self.cloud.name}-{self.scenario.__name__}"

    @property
    def is_first(self) -> bool:
        """Whether it is played every time."""
        if self.cloud is RentedVast:
            return self.scenario in AT_VAST
        return self.scenario not in PART_OF_ANOTHER and (
            self.cloud is RentedRunPod or self.scenario not in SAME_EVERYWHERE
        )


CASES = [Case(cloud, scenario) for scenario in SCENARIOS for cloud in CLOUDS if ONLY_AT.get(scenario, cloud) is cloud]


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Together[Case, float]]:
    folder = tmp_path_factory.mktemp("deadmen")
    cases = [case for case in chosen(request, "case") if not case.cloud.why_not()]
    together = Together(cases, partial(play, folder), AT_ONCE)
    yield together
    together.close()


def play(folder: Path, case: Case) -> float:
    """In a lab of its own, with a provider of its own: what the next machine is like is said to the provider."""
    turn = CASES.index(case)
    if turn < AT_ONCE:
        time.sleep(turn * APART_S)
    own = folder / str(case)
    with Lab(own / "lab") as lab, case.cloud(own, lab) as cloud, cloud.tenant() as tenant:
        late_s = case.scenario(Rental(cloud, tenant))
        tenant.shell.run("status")
        tenant.expect_over(HANG_S)
        return late_s


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case), marks=[pytest.mark.proof] * (not case.is_first)) for case in CASES]
)
def test_it_ends(outcomes: Together[Case, float], case: Case) -> None:
    """Not before its time, and not never: how late is printed."""
    if reason := case.cloud.why_not():
        pytest.skip(reason)
    late_s = outcomes[case]
    print(f"{late_s:.1f} s: {case}")
    assert late_s > -EARLY_S


@pytest.mark.proof
@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda cloud: cloud.name)
def test_how_late(
    outcomes: Together[Case, float], cloud: type[RentedCloud], capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := cloud.why_not():
        pytest.skip(reason)
    with capsys.disabled():
        title = f"seconds from a machine's end to the end of its bill at {cloud.name}, the laptop gone"
        print(f"\n\n{time.strftime('%Y-%m-%d')}: {title}\n")
        for case in CASES:
            if case.cloud is cloud:
                print(f"{case.scenario.__name__.replace('_', ' '):<52} {outcomes[case]:>6.1f}")
