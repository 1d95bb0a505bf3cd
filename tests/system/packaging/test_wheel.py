"""What a user installs: the wheel's content, and that it lives in an empty environment far from a checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpuops.sync.workloads_and_data import WORKLOADS, workload_script
from tests.system.packaging.conftest import ROOT, run

NOT_IN_THE_CORE = {"torch", "numpy", "boto3", "botocore", "runpod", "scikit-learn"}


@pytest.fixture(scope="module")
def content(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_packages_and_nothing_else_on_top(content: set[str]) -> None:
    tops = {name.partition("/")[0] for name in content}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gpuops", "provisioners"}
    sources = {str(path.relative_to(ROOT)) for top in ("gpuops", "provisioners") for path in (ROOT / top).rglob("*.py")}
    assert sources <= content
    assert {"gpuops/py.typed", "provisioners/py.typed"} <= content, "whoever writes a provider checks types against it"


def test_the_wheel_holds_the_workloads_with_their_data_and_no_snapshots(content: set[str]) -> None:
    carried = {name.removeprefix("gpuops/") for name in content if name.startswith("gpuops/train/")}
    files = {path.relative_to(ROOT) for path in (ROOT / "train").rglob("*") if path.is_file()}
    written = {"snapshots", "outputs", "__pycache__", *(f"data/{name}" for name in WORKLOADS)}
    there = {path for path in files if not written & {*path.parts, "/".join(path.parts[1:3])}}
    assert carried == {str(path) for path in there if not any(part.startswith(".") for part in path.parts)}
    assert {f"train/{workload_script(name)}" for name in WORKLOADS} <= carried
    assert {"train/README.md", "train/ddp/trainer.py"} <= carried
    assert {"train/data/digits.csv.gz", "train/data/SOURCE.txt"} <= carried


def test_the_wheel_holds_the_rules_for_keys(content: set[str]) -> None:
    assert "gpuops/sync/keyrules.yml" in content


def test_the_wheel_carries_its_licence(content: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in content)


def test_the_core_install_is_light(installed: Path) -> None:
    listed = run(sys.executable, "-m", "pip", "--python", installed, "list", "--format", "json", cwd=installed.parent)
    names = {package["name"] for package in json.loads(listed)}
    assert "gpuops" in names
    assert not names & NOT_IN_THE_CORE


def test_installed_it_finds_itself_and_its_workloads(installed: Path, tmp_path: Path) -> None:
    code = (
        "import gpuops, gpuops.core.provider, gpuops.sync.workloads_and_data as w; print(gpuops.__file__)\n"
        "for name in w.workload_names(): print(w.workloads_folder() / w.workload_script(name))"
    )
    package, *programs = map(Path, run(installed, "-c", code, cwd=tmp_path).split())
    assert package.is_relative_to(installed.parents[1])
    assert [program.stem for program in programs] == list(WORKLOADS)
    for program in programs:
        assert program.read_bytes() == (ROOT / "train" / program.name).read_bytes()
        assert program.parent == package.parent / "train"


def test_the_installed_command_says_its_version(installed: Path, tmp_path: Path) -> None:
    from gpuops import __version__

    assert run(installed.with_name("gpuops"), "--version", cwd=tmp_path) == f"gpuops {__version__}\n"


def train(installed: Path, tmp_path: Path, *words: str) -> str:
    """What the demo prints, run from another folder; then nothing of its nodes is left."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    own = ("GPUOPS_", "VIRTUAL_ENV", "PYTHONPATH")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env["GPUOPS_HOME"] = str(tmp_path / "home")
    done = subprocess.run(
        [installed.with_name("gpuops"), "train", "multinode", "--nodes", "2", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "runs/digits-1/out/snapshots/digits/last").exists()
    assert not list((tmp_path / "home/local").glob("*/n*")), done.stderr
    return done.stdout


@pytest.mark.real_torch
def test_the_demo_runs_in_another_folder(installed: Path, tmp_path: Path) -> None:
    said = train(installed, tmp_path, "--gpus", "1", "--python", sys.executable, "--", "1")
    assert re.search(r"\[n0 r0\] test accuracy 0\.\d+ .* on 2 ranks \(2 nodes x 1\)", said), said


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_the_demo_runs_from_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    """No torch is there, so gpuops makes an environment that has it; minutes, most of them pip's."""
    found = re.search(r"\[n0 r0\] test accuracy (0\.\d+) .* on 4 ranks \(2 nodes x 2\)", train(installed, tmp_path))
    assert found
    assert float(found[1]) >= 0.95
