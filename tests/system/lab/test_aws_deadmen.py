"""The laptop is gone, and a machine at AWS bills: who ends it, and how many seconds after its end.

Gone means that the command and the guard are killed. The service stays: it is where the laptop's network was.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gpuops.agent.lease import BOOT_MARGIN_S
from provisioners.aws.boot_script import WATCH
from tests.conftest import until
from tests.fakes.aws import FakeAWS, Instance
from tests.system.chaos.ec2 import SaboteurAtAws, TenantOfAws
from tests.system.chaos.hits import guards, is_held
from tests.system.chaos.together import Together, chosen
from tests.system.lab.available import why_no_machines
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop

pytestmark = pytest.mark.timeout(1800)  # who comes first waits for all that run beside it

UP = ("up", "aws", "--yes", "--gpus", "1", "--gpu-type", "t4")
BOOT = ("--max-cost", "0.0135")
"""A boot lease of a minute and a half at the prices there."""
RUN = ("--max-hours", "0.03")
"""A run lease of 108 s."""
LONGER = ("--max-hours", "0.036")
"""Of 130 s: who starts again once it is up needs a while."""
HANG_S = 800.0
APART_S = 3.0
ENDING_S = 20.0
"""A machine shuts down for so long, unbilled, and the guard of who is back sees it off."""
EARLY_S = 5.0
"""A node may begin to end so long before its last second."""
END = f"{WATCH}/end"


class Here(TenantOfAws):
    """Somebody with one machine."""

    @property
    def machine(self) -> Instance:
        (one,) = self.fake.world.instances.values()
        return one

    @property
    def unbilled(self) -> float:
        """When it began to shut down: from then on it costs nothing (EC2's description of the instance lifecycle)."""
        assert self.machine.ended
        return self.machine.ended - ENDING_S

    @property
    def bills(self) -> bool:
        self.fake.settle()
        return self.machine.lives

    def is_gone(self) -> None:
        self.shell.die()
        for process in self.shell.started:
            process.wait()

    def booting(self, mishap: str = "") -> subprocess.Popen[str]:
        """A command that waits for its machine, which has nothing of ours but what came with it."""
        self.fake.mishaps[0] = mishap
        process = self.shell.start(*UP, *BOOT)
        until(self.fake.instances, "the machine")
        return process

    def up(self, lease: tuple[str, str] = RUN) -> None:
        """A node that is up, and nobody else."""
        done = self.shell.run(*UP, *lease)
        assert done.returncode == 0, done.stderr
        self.is_gone()
        assert self.bills

    def inside(self, *argv: str) -> str:
        return self.bodies.run(self.machine.id, argv, check=True).stdout.strip()  # type: ignore[no-any-return]

    @property
    def bodies(self):  # type: ignore[no-untyped-def]
        assert self.fake.world.bodies
        return self.fake.world.bodies.machines

    def node(self) -> set[str]:
        """The modes in which our agent runs on the machine."""
        lines = [line.split() for line in self.bodies.processes(self.machine.id)]
        return {words[at + 1] for words in lines for at, word in enumerate(words[:-1]) if word.endswith(".pyz")}

    def kill(self, mode: str) -> None:
        """SIGKILL processes of ours, all at once: each starts the other anew."""
        self.inside("pkill", "-KILL", "-f", f"[.]pyz {mode}")

    def reboot(self) -> None:
        machine = self.bodies.machine(self.machine.id)
        end = machine.disk / "upper" / END[1:]
        before = end.read_text()
        self.fake.reboot(self.machine.id)
        until(lambda: machine.boots == 2 or not self.bills, "a second boot")
        until(lambda: self.bodies.console(self.machine.id).count("stage final") == 2 or not self.bills, "it boots")
        assert end.read_text() == before

    @property
    def boot_end(self) -> float:
        (row,) = self.clusters()
        return row.boot_deadline

    @property
    def lease_end(self) -> float:
        (row,) = self.clusters()
        assert row.lease.end
        return row.lease.end

    def ended(self, due: float) -> float:
        """How long after this the meter stopped, nobody of ours being here."""
        until(lambda: not self.bills, "the machine has ended", HANG_S)
        assert not guards(self.shell)
        return self.unbilled - due


# ---- scenarios: each returns how many seconds after its end a machine's bill ended


def before_its_boot_has_ended(here: Here) -> float:
    here.booting()
    here.is_gone()
    return here.ended(here.boot_end)


def before_that_and_it_starts_again(here: Here) -> float:
    """Its end is absolute: another start is no new count."""
    here.booting()
    here.is_gone()
    until(lambda: "stage final" in here.bodies.console(here.machine.id) or not here.bills, "it has booted")
    assert here.bills, "its end came first"
    here.reboot()
    return here.ended(here.boot_end)


def its_user_data_fails(here: Here) -> float:
    here.booting("fails")
    here.is_gone()
    return here.ended(here.boot_end)


def its_boot_hangs(here: Here) -> float:
    here.booting("hangs early")
    here.is_gone()
    return here.ended(here.boot_end)


def it_never_boots_and_the_guard_lives(here: Here) -> float:
    """The command is there and does nothing any more."""
    process = here.booting("dead")
    until(lambda: guards(here.shell), "the guard")
    until(lambda: is_held(here.shell, process), "it stands still, and not with the ledger in its hand")
    due = here.boot_end  # the ledger forgets it with the cluster
    try:
        until(lambda: not here.bills, "the guard ends it", HANG_S)
    finally:
        process.kill()
        process.wait()
    return here.unbilled - due


def it_never_boots(here: Here) -> float:
    """No process of ours in it: it bills until this computer is back, which `up` has said."""
    process = here.booting("dead")
    assert process.stderr
    assert any("not yet protected: keep this computer on" in line for line in process.stderr)
    here.is_gone()
    until(lambda: time.time() > here.boot_end + 15, "its end is over")
    assert here.bills
    back = time.time()
    assert here.shell.run("status").returncode == 0
    until(lambda: not here.bills, "the guard that is back ends it", HANG_S)
    return here.unbilled - back


def nothing_else(here: Here) -> float:
    here.up()
    return here.ended(here.lease_end)


def its_agent_is_killed(here: Here) -> float:
    here.up()
    here.kill("agent ")
    return here.ended(here.lease_end)


def its_watchdog_is_killed(here: Here) -> float:
    here.up()
    here.kill("watchdog ")
    return here.ended(here.lease_end)


def both_are_killed(here: Here) -> float:
    """What came with the machine starts the node again."""
    here.up()
    here.kill("")
    until(lambda: "watchdog" in here.node() or not here.bills, "the node is back")
    assert here.bills, "its end came first"
    return here.ended(here.lease_end)


def both_are_killed_and_cannot_be_revived(here: Here) -> float:
    """What came with the machine ends it, two minutes behind; here sooner, so that nobody has to wait for it."""
    here.up()
    behind_s = float(here.inside("cat", END)) - here.lease_end
    assert BOOT_MARGIN_S - EARLY_S < behind_s < 2 * BOOT_MARGIN_S  # a lease is on its way for a while
    here.inside("rm", f"{WATCH}/revive")

    def are_gone() -> bool:
        """And nobody was just about to start them anew."""
        here.bodies.run(here.machine.id, ["pkill", "-KILL", "-f", "[.]pyz "])
        time.sleep(1)
        return not any(".pyz" in line for line in here.bodies.processes(here.machine.id))

    until(are_gone, "both are gone")
    due = int(time.time()) + 15
    here.inside("sh", "-c", f"echo {due} >{END}")
    return here.ended(due)


def it_starts_again(here: Here) -> float:
    here.up(LONGER)
    here.reboot()
    until(lambda: "watchdog" in here.node() or not here.bills, "the node is back")
    assert here.bills, "its end came first"
    return here.ended(here.lease_end)


SCENARIOS: dict[str, Callable[[Here], float]] = {
    one.__name__.replace("_", " "): one
    for one in (
        both_are_killed,
        it_starts_again,
        both_are_killed_and_cannot_be_revived,
        nothing_else,
        its_agent_is_killed,
        its_watchdog_is_killed,
        before_that_and_it_starts_again,
        it_never_boots,
        before_its_boot_has_ended,
        its_user_data_fails,
        its_boot_hangs,
        it_never_boots_and_the_guard_lives,
    )
}


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Together[str, float]]:
    if reason := why_no_machines():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("deadmen")
    together = Together(chosen(request, "name"), partial(play, folder), len(SCENARIOS))
    yield together
    together.close()


def play(folder: Path, name: str) -> float:
    """Each in a lab of its own, with an AWS of its own; all in one process, so not all search for offers at once."""
    time.sleep(list(SCENARIOS).index(name) * APART_S)
    own = folder / name.replace(" ", "_")
    with Lab(own / "lab") as lab, FakeAWS(own / "aws", lab=lab) as fake, renter(own, lab, fake) as here:
        fake.ending_s = ENDING_S
        late_s = SCENARIOS[name](here)
        here.shell.run("status")
        here.expect_over(HANG_S)
        return late_s


@contextmanager
def renter(own: Path, lab: Lab, fake: FakeAWS) -> Iterator[Here]:
    project = own / "project"
    project.mkdir()
    home = Path(tempfile.mkdtemp(prefix="gpuops-"))  # short: sockets lie in it
    shell = Laptop(home, project, env={**fake.env, "HOME": str(own)}, prefix=lab.enter, lab=lab)
    try:
        yield Here(shell, fake, SaboteurAtAws(fake))  # type: ignore[arg-type]
    finally:
        shell.end()
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("name", SCENARIOS, ids=lambda name: name.replace(" ", "_"))
def test_it_ends(outcomes: Together[str, float], name: str) -> None:
    """Not before its time, and not never: how late is printed."""
    late_s = outcomes[name]
    print(f"{late_s:.1f} s: {name}")
    assert late_s > -EARLY_S


@pytest.mark.proof
def test_how_late(outcomes: Together[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n\n{time.strftime('%Y-%m-%d')}: seconds from a machine's end to its bill's, the laptop gone\n")
        for name in SCENARIOS:
            print(f"{name:<52} {outcomes[name]:>6.1f}")
