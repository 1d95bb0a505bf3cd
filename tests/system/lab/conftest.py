"""Labs for tests; a machine that cannot have one skips them with the reason."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.counting import PLAIN
from tests.system.lab.available import why_no_lab
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Begin, HostCounting, Laptop
from tests.system.lab.pbs import Pbs
from tests.system.lab.slurm import Slurm, has_freezer, why_no_slurm


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """An empty lab of this test's own."""
    if reason := why_no_lab():
        pytest.skip(reason)
    with Lab(tmp_path / "lab") as one:
        yield one


@pytest.fixture
def laptop(lab: Lab, tmp_path: Path) -> Iterator[Laptop]:
    """A fresh home and an empty project folder on the laptop; whatever is left at the end is ended."""
    folder = tmp_path / "project"
    folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="gpuops-") as home:  # short: sockets lie in it
        one = Laptop(Path(home), folder, prefix=lab.enter, lab=lab)
        yield one
        one.end()


@pytest.fixture
def hosts(lab: Lab, laptop: Laptop) -> tuple[Host, Host]:
    """Two hosts, of which the cluster `lab` is up."""
    pair = lab.host("a"), lab.host("b")
    laptop.up(*pair)
    return pair


@pytest.fixture
def begin(laptop: Laptop, hosts: tuple[Host, Host]) -> Begin:
    """`begin("deaf")`: counters on both."""

    def make(*mood: str, kind: tuple[str, ...] = PLAIN, flags: tuple[str, ...] = ()) -> HostCounting:
        counting = HostCounting(laptop, Path("/srv/side"), kind, hosts=hosts)
        return counting.start(*mood, flags=flags)

    return make


@pytest.fixture
def slurm(lab: Lab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """A Slurm cluster in the lab. Its parameter: by which it knows a job's processes, in place of the best there is, or
    `database` for accounts in one."""
    wish = getattr(request, "param", "")
    if reason := why_no_slurm(database=wish == "database"):
        pytest.skip(reason)
    home = tmp_path / "shared"
    home.mkdir(mode=0o700)
    proctrack = wish if wish == "linuxproc" else "cgroup" if has_freezer() else "linuxproc"
    one = Slurm(lab, home, proctrack, database=wish == "database")
    yield one
    one.close()


@pytest.fixture
def pbs(lab: Lab, tmp_path: Path) -> Pbs:
    """A PBS cluster in the lab; its jobs end with the hosts."""
    home = tmp_path / "shared"
    home.mkdir(mode=0o700)
    return Pbs(lab, home)
