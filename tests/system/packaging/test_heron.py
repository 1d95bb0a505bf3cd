"""A cloud that was made up, in a wheel of somebody else's, written with the kit: proven, and rented from end to end."""

from __future__ import annotations

import ast
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.commands.prove.sandbox import Sandbox
from gpuops.commands.prove.scenarios import SCENARIOS, Scenario, run_scenario
from gpuops.core.models import Request
from gpuops.testing import LostAnswersContract, open_sandbox
from tests.integration.provisioners.test_rented_contract import NEED_NODES, SETTLE_S
from tests.system.lab.available import why_no_machines
from tests.system.lab.conftest import lab, laptop  # noqa: F401  (fixtures)
from tests.system.lab.laptop import Laptop
from tests.system.packaging.conftest import build, made_once, run

PROJECT = Path(__file__).parent / "heron"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel."""

    def make(folder: Path) -> None:
        (folder / "dist").mkdir()
        shutil.copytree(PROJECT, folder / "project")
        wheel = build(folder / "project", folder / "dist")
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
        run(*pip, "--target", folder / "site", wheel, cwd=folder)

    return made_once(tmp_path_factory, "heron", make) / "site"


@pytest.fixture(scope="module")
def installed_here(site: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.syspath_prepend(PROJECT)  # its fake
        patch.setenv("PYTHONPATH", str(site))  # for the commands that scenarios start
        yield


@pytest.fixture(scope="module")
def fake(installed_here: None) -> Iterator[Any]:  # noqa: ARG001
    import fake_heron
    import gpuops_heron

    one = fake_heron.FakeHeron()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpuops_heron.HeronProvisioner, "settle_s", SETTLE_S)
        yield one
    one.close()


def test_it_knows_nothing_of_gpuops_but_the_contract_and_the_kit() -> None:
    source = (PROJECT / "gpuops_heron.py").read_text()
    tree = ast.parse(source)
    used = {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {name for name in used if not name.startswith("provisioners.kit")}
    assert ours == {"__future__", "collections.abc", "gpuops.core.errors", "gpuops.core.models"}
    page = (Path(__file__).parents[3] / "docs" / "providers.md").read_text(encoding="utf-8")
    assert f"Heron is {len(source.splitlines())} lines" in page


@pytest.fixture(scope="module")
def bench(fake: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    home = tmp_path_factory.mktemp("home")
    with open_sandbox({**os.environ, **fake.env}, Request("heron", nodes=2), home) as one:
        yield one


@pytest.mark.parametrize(
    "scenario",
    [scenario for scenario in SCENARIOS if scenario.name not in NEED_NODES],
    ids=lambda scenario: scenario.name,
)
def test_contract(bench: Sandbox, fake: Any, scenario: Scenario) -> None:
    result = run_scenario(bench, scenario)
    assert result.outcome == "proven", f"{scenario.name}: {scenario.says}; but {result.said}"
    if scenario.name == "nothing-left":
        assert fake.running() == []


class TestLostAnswers(LostAnswersContract):
    provider = "heron"

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls, fake: Any) -> dict[str, str]:
        return {**os.environ, **fake.env}


def test_a_run_from_nothing_to_gone(installed_here: None, site: Path, laptop: Laptop) -> None:  # noqa: F811, ARG001
    if reason := why_no_machines():
        pytest.skip(reason)
    import fake_heron

    from tests.fakes.aws.machines import Machines, Order

    machines = Machines(laptop.lab)

    def boot(id: str, user_data: str) -> str:
        order = Order(id=id, user_data=user_data)
        threading.Thread(target=machines.start, args=(order,), daemon=True).start()
        return machines.public(id)

    def halt(id: str) -> None:
        threading.Thread(target=machines.stop, args=(id,), daemon=True).start()

    fake = fake_heron.FakeHeron(boot, halt, machines.listen())
    laptop.env.update(fake.env, PYTHONPATH=f"{laptop.environment()['PYTHONPATH']}{os.pathsep}{site}")
    try:
        done = laptop.run("run", "--on", "heron", "--gpus", "1", "--yes", "--", "sh", "-c", "id -un; echo 7 >out.txt")
        assert done.returncode == 0, done.stderr
        assert "ubuntu" in done.stdout
        assert "these machines cannot end themselves" in done.stderr
        assert [one.asked["type"] for one in fake.servers.values()] == ["a10.1"]
        assert fake.running() == []
    finally:
        laptop.end()
        fake.close()
        machines.close()
    assert machines.problems == []
