"""Whatever a user types arrives at the program byte for byte, and nothing of it is executed on the way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuops.commands.export.job import TargetOptions
from gpuops.commands.export.targets import TARGETS, export_text
from gpuops.core.format import calm
from gpuops.core.run_models import RunRequest
from tests.fakes import schedulers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="scripts for bash")
PYTHON = """\
#!{python} -IS
import json, os, sys
if sys.argv[1] == "-c":
    print("eth9")
else:
    at = sys.argv.index("--max-restarts=0") + 1
    node = next(word for word in sys.argv if word.startswith("--node-rank="))[12:]
    with open(os.path.join({folder!r}, node + ".json"), "w") as file:
        json.dump({{"options": sys.argv[3:at], "words": sys.argv[at:], "env": dict(os.environ)}}, file)
"""
"""Stands in for a Python with torch: it says what torchrun was given."""
NASTY = (
    "a b", "it's", '"', "$HOME", "$(touch x)", "`touch x`", "$$(POD_IP)", "$(POD_IP)", "$$", "\\", "\\\n", "a\nb", "\n",
    "\n  - name: x", "EOF", "#", "!!", "*", "~", "", "-n", "--", "; touch x", "}", "{{", "é€😀", "\t", "'\n#SBATCH --x",
    ": |", "%s", "${A}", "&", "(", "on", "null", "1e3", "---", "...", "\"\n", " x ",
)  # fmt: skip
WORDS = st.one_of(
    st.sampled_from(NASTY), st.text("ab '\"$`\\\n(){}[]#:-*~!&;|<>%=,?^\té", max_size=12), st.text(max_size=8)
).filter(lambda word: calm(word) == word)
PRELUDES = st.sampled_from(
    (
        "export FROM='a b'",
        "true && export FROM='a b'",
        "if true; then\nexport FROM='a b'\nfi",
        "false || export FROM='a b'",
    )
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    schedulers.install(folder / "tools")
    (folder / "cwd").mkdir()
    (folder / "home").mkdir()
    (folder / "home" / ".bash_profile").write_text('module() { export LOADED="$*"; }\nfails() { false; true; }\n')
    python = folder / "py 3"
    python.write_text(PYTHON.format(python=sys.executable, folder=str(folder)))
    python.chmod(0o755)
    return folder


def write(target: str, request: RunRequest) -> str:
    options = TargetOptions(image="torch:1") if target == "k8s" else TargetOptions()
    return export_text(target, request, options, port=23456)


def execute(target: str, text: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Execute both nodes' part of a script, where `python` stands in for the one with torch. Returns what came of the
    last, where the others went well."""
    cwd, tools = place / "cwd", place / "tools"
    env = {**os.environ, "HEAD": "127.0.0.1"}
    scripts: Sequence[Sequence[str]] = ()
    if target == "torchrun":
        first, *lines = re.split(r"^# Then(?: on node \d)?:\n", text, flags=re.M)
        scripts = [["bash", "-c", first + line] for line in lines]
    elif target == "k8s":
        container = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]["containers"][0]
        known = {"POD_IP": "10.9.9.9"}
        for one in container["env"]:
            if "value" in one:
                known[one["name"]] = expand(one["value"], known)
        env |= known
        scripts = [[*container["command"], *(expand(word, known) for word in container["args"])]]
    else:
        (place / "script").write_text(text)
        scripts = [["bash", str(place / "script")]]
        env = (
            schedulers.slurm_job(tools, "1", HOME=str(place / "home"))
            if target == "slurm"
            else schedulers.pbs_job(tools, "1.s", cwd, place / "home")
        )
    for old in place.glob("*.json"):
        old.unlink()
    for node, script in enumerate(scripts):
        variables = {**env, "JOB_COMPLETION_INDEX": str(node)}
        done = subprocess.run(script, env=variables, cwd=cwd, timeout=60, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or script is scripts[-1], done.stderr
    return done


def given_to(place: Path, node: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / f"{node}.json").read_text())
    return found


def expand(text: str, known: dict[str, str]) -> str:
    """`$(NAME)` and `$$` as the kubelet reads them, from the left; a name that it does not know stays."""
    return re.sub(
        r"\$(\$|\(([^)]*)\))", lambda found: "$" if found[1] == "$" else known.get(found[2], found[0]), text, flags=re.S
    )


@pytest.mark.parametrize("target", TARGETS)
@given(
    script=WORDS.map(lambda word: f"{word.replace('/', '')}x.py"),
    argv=st.lists(WORDS, max_size=4),
    value=WORDS,
    line=PRELUDES,
    nodes=st.sampled_from((1, 2)),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_words_arrive(
    place: Path, target: str, script: str, argv: list[str], value: str, line: str, nodes: int
) -> None:
    request = RunRequest(
        kind="torchrun", mode="multinode", nodes=nodes, gpus=2, script=script, argv=argv, prelude=[line],
        env={"VALUE": value}, python=str(place / "py 3"),
    )  # fmt: skip
    done = execute(target, write(target, request), place)
    assert done.returncode == 0, done.stderr
    first = given_to(place, 0)
    assert first["words"] == [f"./{script}" if script.startswith("-") else script, *argv]
    assert first["env"]["VALUE"] == value
    assert first["env"]["FROM"] == "a b"
    assert first["env"]["GLOO_SOCKET_IFNAME"] == ("eth9" if nodes == 2 else "lo")
    assert not [name for name in first["env"] if name.startswith(("PET_", "PMI", "SLURM_N"))]
    assert list((place / "cwd").iterdir()) == []
    if target != "k8s":
        assert (place / "1.json").exists() == (nodes == 2)


def preludes(target: str, place: Path, *lines: str, secrets: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    request = RunRequest(
        kind="torchrun", mode="multinode", nodes=2, gpus=2, script="train.py", prelude=lines, secrets=secrets,
        python=str(place / "py 3"),
    )  # fmt: skip
    return execute(target, write(target, request), place)


@pytest.mark.parametrize("target", ["slurm", "pbs"])
def test_modules_are_known_on_each_node(place: Path, target: str) -> None:
    done = preludes(target, place, "module load cuda/12.4", "fails", "[ -e /nowhere ] && . /nowhere")
    assert done.returncode == 0, done.stderr
    assert [given_to(place, node)["env"]["LOADED"] for node in range(2)] == ["load cuda/12.4"] * 2


@pytest.mark.parametrize("target", ["slurm", "pbs", "k8s"])
def test_nothing_is_started_behind_a_prelude_that_fails(place: Path, target: str) -> None:
    done = preludes(target, place, "export A=1", "ls /nowhere", "export B=1")
    assert done.returncode == 126, done.stderr
    assert "the prelude line failed: ls /nowhere" in done.stderr
    assert not (place / "0.json").exists()


@pytest.mark.parametrize("target", ["slurm", "pbs"])
def test_a_secret_that_is_not_there_ends_the_job(place: Path, target: str) -> None:
    done = preludes(target, place, secrets=["HF_TOKEN"])
    assert done.returncode != 0
    assert "HF_TOKEN: export it" in done.stderr
    assert preludes(target, place, "export HF_TOKEN=x", secrets=["HF_TOKEN"]).returncode == 0
    assert given_to(place, 1)["env"]["HF_TOKEN"] == "x"
