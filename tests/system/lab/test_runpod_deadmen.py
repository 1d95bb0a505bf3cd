"""The laptop is gone, and a pod bills: who ends it, and how many seconds after its end. What nobody can end was said.

Gone means that the command and the guard are killed. The service stays: it is where the laptop's network was.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import until
from tests.fakes.runpod import FakeRunPod, Life, Pod
from tests.fakes.runpod.faults import DEAF, Fault
from tests.system.chaos.hits import guards, is_held, kill
from tests.system.chaos.tenant import Tenant
from tests.system.chaos.together import Together, chosen
from tests.system.lab.available import why_no_lab
from tests.system.lab.hosts import Lab
from tests.system.lab.rented import Street

pytestmark = pytest.mark.timeout(1800)  # who comes first waits for all that run beside it

BOOT = ("--max-cost", "0.006")
"""A boot lease of a minute and a half at the prices there; the run lease is over then, too."""
RUN = ("--max-hours", "0.014")
"""A run lease of 50 s."""
NEVER_STARTS = Life(pull_s=None)
HANG_S = 800.0
EARLY_S = 5.0
"""A node may begin to end so long before its last second."""


@dataclass(frozen=True)
class Ended:
    """When the meter stopped, in seconds after the end that was due."""

    late_s: float


def laptop_is_gone(here: Tenant, process: subprocess.Popen[str] | None = None) -> None:
    if process:
        process.kill()
        process.wait()
    for pid in guards(here.shell):
        kill(pid)


def booting(here: Tenant, life: Life) -> tuple[subprocess.Popen[str], Pod]:
    """A command that waits for its pod, which has none of ours yet but what came with it."""
    here.fake.life = life
    process = here.shell.start("up", "runpod", "--yes", *BOOT)
    (pod,) = until(here.running, "the pod")
    return process, pod


def with_container(here: Tenant) -> Pod:
    """The laptop is gone once the container of a pod that nobody can log in to is there."""
    process, pod = booting(here, DEAF)
    until(lambda: pod.body.up and pod.body.run(["test", "-s", "/run/gpuops/end"]).returncode == 0, "its watchdog")
    laptop_is_gone(here, process)
    return pod


def up(here: Tenant) -> Pod:
    """A node that is up, and nobody else."""
    done = here.shell.run("up", "runpod", "--yes", *RUN)
    assert done.returncode == 0, done.stderr
    laptop_is_gone(here)
    (pod,) = here.running()
    return pod


def ended(here: Tenant, pod: Pod, due: float) -> Ended:
    until(lambda: not pod.bills, f"{pod.name} has ended", HANG_S)
    assert not guards(here.shell)
    return Ended(pod.ended - due)


def boot_end(pod: Pod) -> float:
    return float(pod.env["GPUOPS_END"])


def lease_end(here: Tenant) -> float:
    (row,) = here.clusters()
    assert row.lease.end
    return row.lease.end


def end_in_pod(pod: Pod, mode: str) -> None:
    """SIGKILL processes of ours in a pod, all at once: each starts the other anew."""
    done = pod.body.run(["pkill", "-KILL", "-f", f"[.]pyz {mode} "])
    assert done.returncode == 0, f"there is no {mode}: {pod.body.processes()}"


def restart_container(pod: Pod) -> None:
    before, first = pod.body.starts, pod.body.pid
    assert first, "its end came first"
    os.kill(first, signal.SIGKILL)
    until(lambda: pod.body.starts > before and pod.body.up, "its container is started again")


# ---- scenarios


def before_it_can_be_logged_in_to(here: Tenant) -> Ended:
    pod = with_container(here)
    return ended(here, pod, boot_end(pod))


def before_that_and_its_container_starts_again(here: Tenant) -> Ended:
    """Its end is absolute: another start is no new count."""
    pod = with_container(here)
    time.sleep(10)
    restart_container(pod)
    return ended(here, pod, boot_end(pod))


def before_that_and_its_clock_is_set_back(here: Tenant) -> Ended:
    """`date` there says an hour less from now on; the seconds that pass are counted all the same."""
    pod = with_container(here)
    time.sleep(10)
    script = (
        "mv /usr/bin/date /usr/bin/date.true\n"
        'printf \'#!/bin/sh\\n[ "$*" = +%%s ] && exec sh -c "echo \\$((\\$(date.true +%%s) - 3600))"\\n'
        'exec date.true "$@"\\n\' >/usr/bin/date\nchmod 755 /usr/bin/date\ndate +%s\n'
    )
    said = pod.body.run(["sh", "-c", script], check=True).stdout
    assert abs(int(said) + 3600 - time.time()) < 60, said
    return ended(here, pod, boot_end(pod))


def before_that_and_the_service_is_out_of_reach(here: Tenant) -> Ended:
    """It goes on trying until somebody hears it."""
    pod = with_container(here)
    lab = here.shell.lab  # type: ignore[attr-defined]
    lab.cut(pod.body)
    until(lambda: time.time() > boot_end(pod) + 30, "its end is over")
    assert pod.bills
    lab.mend(pod.body)
    mended = time.time()
    return ended(here, pod, mended)


def its_image_is_never_there(here: Tenant) -> Ended:
    """No process of ours in it: it bills until this computer is back, which `up` has said."""
    process, pod = booting(here, NEVER_STARTS)
    assert process.stderr
    assert any("not yet protected: keep this computer on" in line for line in process.stderr)
    until(lambda: here.fake.asked("GET", "/pods/*"), "it waits for it")
    laptop_is_gone(here, process)
    until(lambda: time.time() > boot_end(pod) + 15, "its end is over")
    assert pod.bills
    back = time.time()
    assert here.shell.run("status").returncode == 0
    until(lambda: not pod.bills, "the guard that is back ends it", HANG_S)
    return Ended(pod.ended - back)


def its_image_is_never_there_and_the_guard_lives(here: Tenant) -> Ended:
    """The command is there and does nothing any more."""
    process, pod = booting(here, NEVER_STARTS)
    until(lambda: guards(here.shell), "the guard")
    until(lambda: is_held(here.shell, process), "it stands still, and not with the ledger in its hand")
    try:
        until(lambda: not pod.bills, "the guard ends it", HANG_S)
    finally:
        process.kill()
        process.wait()
    return Ended(pod.ended - boot_end(pod))


def nothing_else(here: Tenant) -> Ended:
    return ended(here, up(here), lease_end(here))


def its_agent_is_killed(here: Tenant) -> Ended:
    pod = up(here)
    end_in_pod(pod, "agent")
    return ended(here, pod, lease_end(here))


def its_watchdog_is_killed(here: Tenant) -> Ended:
    """What came with the pod starts another."""
    pod = up(here)
    end_in_pod(pod, "watchdog")
    return ended(here, pod, lease_end(here))


def both_are_killed_and_cannot_be_revived(here: Tenant) -> Ended:
    """What came with the pod ends it, two minutes behind."""
    pod = up(here)
    pod.body.run(["rm", "/run/gpuops/revive"], check=True)

    def are_gone() -> bool:
        """And nobody was just about to start them anew."""
        pod.body.run(["pkill", "-KILL", "-f", "[.]pyz "])
        time.sleep(1)
        return not any(".pyz " in line or "revive" in line for line in pod.body.processes())

    until(are_gone, "both are gone")
    return ended(here, pod, lease_end(here) + 120)


def what_came_with_it_is_killed(here: Tenant) -> Ended:
    pod = up(here)
    pod.body.run(["sh", "-c", "kill -9 $(cat /run/gpuops/pid)"], check=True)
    return ended(here, pod, lease_end(here))


def its_container_starts_again(here: Tenant) -> Ended:
    pod = up(here)
    restart_container(pod)
    return ended(here, pod, lease_end(here))


def it_is_idle_and_every_way_is_refused_at_first(here: Tenant) -> Ended:
    """Its hard end is a day away: the node's own watchdog must go on trying."""
    done = here.shell.run("up", "runpod", "--yes", "--idle", "0.5")
    assert done.returncode == 0, done.stderr
    laptop_is_gone(here)
    (pod,) = here.running()
    here.fake.play(
        Fault("POST /pods/*/action", action="terminate", times=2, lie=True),
        Fault("POST /graphql", times=2, status=401),
        Fault("POST /pods/*/action", action="stop", times=2, status=404, detail="pod not found"),
    )
    return ended(here, pod, time.time())


SCENARIOS: dict[str, Callable[[Tenant], Ended]] = {
    one.__name__.replace("_", " "): one
    for one in (
        both_are_killed_and_cannot_be_revived,
        its_image_is_never_there_and_the_guard_lives,
        before_that_and_the_service_is_out_of_reach,
        before_it_can_be_logged_in_to,
        before_that_and_its_container_starts_again,
        before_that_and_its_clock_is_set_back,
        its_image_is_never_there,
        nothing_else,
        its_agent_is_killed,
        its_watchdog_is_killed,
        what_came_with_it_is_killed,
        its_container_starts_again,
        it_is_idle_and_every_way_is_refused_at_first,
    )
}


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Together[str, Ended]]:
    if reason := why_no_lab():
        pytest.skip(reason)
    names = chosen(request, "name")
    folder = tmp_path_factory.mktemp("deadmen")
    together = Together(names, partial(play, folder), len(SCENARIOS))
    yield together
    together.close()


def play(folder: Path, name: str) -> Ended:
    """Each in a lab of its own: what a service's next pod is like is said to the service."""
    own = folder / name.replace(" ", "_")
    with (
        Lab(own / "lab") as lab,
        FakeRunPod(own / "runpod", lab=lab) as fake,
        Street(own, lab, fake).tenant() as here,
    ):
        found = SCENARIOS[name](here)
        here.shell.run("status")
        here.expect_over(HANG_S)
        return found


@pytest.mark.parametrize("name", SCENARIOS, ids=lambda name: name.replace(" ", "_"))
def test_it_ends(outcomes: Together[str, Ended], name: str) -> None:
    """Not before its time, and not never: how late is printed."""
    late_s = outcomes[name].late_s
    print(f"{late_s:.1f} s: {name}")
    assert late_s > -EARLY_S


@pytest.mark.proof
def test_how_late(outcomes: Together[str, Ended], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n\n{time.strftime('%Y-%m-%d')}: seconds from a pod's end to the end of its bill, the laptop gone\n")
        for name in SCENARIOS:
            print(f"{name:<52} {outcomes[name].late_s:>6.1f}")
