"""Which Python a node picks, what it makes when there is none, and what a set-up command may do."""

from __future__ import annotations

import base64
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuops.agent.node import Node, Refusal
from gpuops.agent.python import environments, interpreters, setup
from gpuops.agent.python.interpreters import Candidate, probe_interpreter

VERSION = platform.python_version()
VERSION_PY = "__version__ = '{}'\ndebug = False\ncuda: Optional[str] = {!r}\ngit_version = 'abc'\n"
MAKE = {
    "requirements": ["requests", "torchvision"],
    "torch": "torch>=2.4",
    "index": "https://" + "me:word" + "@index/cu126",
    "name": "abc",
}

FAKE_UV = """#!{python}
import json, os, subprocess, sys
from pathlib import Path
with open({log!r}, "a") as log:
    log.write(json.dumps([os.environ.get("UV_DEFAULT_INDEX"), *sys.argv[1:]]) + "\\n")
if sys.argv[1] == "venv":
    raise SystemExit(subprocess.call([sys.argv[-2], "-m", "venv", "--without-pip", sys.argv[-1]]))
print("Resolved 3 packages\\nInstalled torch")
if {fail}:
    print("error: No space left on device")
    raise SystemExit(2)
site = next(Path(sys.argv[4]).parent.parent.glob("lib/python*/site-packages"))
(site / "torch").mkdir(exist_ok=True)
(site / "torch" / "version.py").write_text("__version__ = '2.9.0+cu126'\\ncuda = '12.6'\\n")
"""


def venv(folder: Path, *options: str, base: str = sys.executable) -> Path:
    subprocess.run([base, "-m", "venv", "--without-pip", *options, str(folder)], check=True)
    return folder / "bin" / "python"


def site_of(python: Path) -> Path:
    return next(python.parent.parent.glob("lib/python*/site-packages"))


def put_torch(site: Path, version: str = "2.8.0+cu128", cuda: str | None = "12.8") -> None:
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "version.py").write_text(VERSION_PY.format(version, cuda))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python without torch."""
    return str(venv(tmp_path_factory.mktemp("plain") / "env"))


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    python = venv(tmp_path_factory.mktemp("with") / "env")
    put_torch(site_of(python))
    return str(python)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "cluster" / "n0" / "project").mkdir(parents=True)
    return Node(str(tmp_path / "cluster" / "n0"))


def ignore(_item: dict) -> None:
    pass


def ask(node: Node, places: list[str], emit=ignore, **args):
    """The verb `python` on a machine whose usual places are `places`."""
    given = [Candidate(path, "python3 on the PATH") for path in places]
    return setup.python(node, {"needs_torch": True, **args}, emit, subprocess.Popen, lambda _: given)


def test_torch_is_found_by_its_files(with_torch: str) -> None:
    found = probe_interpreter(with_torch, subprocess.Popen)
    assert found is not None
    assert (found.torch, found.cuda, found.version) == ("2.8.0+cu128", "12.8", sys.version_info[:3])


def test_a_cpu_build_has_no_cuda(tmp_path: Path) -> None:
    put_torch(tmp_path, "2.13.0+cpu", None)
    assert interpreters.find_torch(["/nowhere", str(tmp_path)]) == ("2.13.0+cpu", None)


def test_an_environment_from_an_environment_does_not_see_its_torch(with_torch: str, tmp_path: Path) -> None:
    found = probe_interpreter(
        str(venv(tmp_path / "child", "--system-site-packages", base=with_torch)), subprocess.Popen
    )
    assert found is not None
    assert found.torch is None


def test_a_pth_file_is_followed(tmp_path: Path) -> None:
    python = venv(tmp_path / "env")
    put_torch(tmp_path / "elsewhere", "2.7.1")
    (site_of(python) / "more.pth").write_text(str(tmp_path / "elsewhere") + "\n")
    found = probe_interpreter(str(python), subprocess.Popen)
    assert found is not None
    assert found.torch == "2.7.1"


def test_the_users_own_site_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = sys._base_executable  # type: ignore[attr-defined]
    user = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    put_torch(tmp_path / ".local" / user, "2.6.0")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = probe_interpreter(base, subprocess.Popen)
    assert found is not None
    assert found.torch == "2.6.0"


def test_behind_a_shim_is_the_python_itself(with_torch: str, tmp_path: Path) -> None:
    shim = tmp_path / "python3"
    shim.write_text(f'#!/bin/sh\nexec {with_torch} "$@"\n')
    shim.chmod(0o755)
    found = probe_interpreter(str(shim), subprocess.Popen)
    assert found is not None
    assert found.path == with_torch


@pytest.mark.parametrize("program", ["#!/bin/sh\necho hello\n", "#!/bin/sh\nexit 3\n", "no program at all"])
def test_what_is_no_python_is_passed_over(tmp_path: Path, program: str) -> None:
    path = tmp_path / "python"
    path.write_text(program)
    path.chmod(0o755)
    assert probe_interpreter(str(path), subprocess.Popen) is None
    assert probe_interpreter(str(tmp_path), subprocess.Popen) is None


def test_a_python_that_hangs_is_ended_and_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nsleep 600\n")
    path.chmod(0o755)
    monkeypatch.setattr(interpreters, "PROBE_TIMEOUT_S", 0.5)
    started: list[subprocess.Popen] = []

    def spawn(*given, **more) -> subprocess.Popen:
        started.append(subprocess.Popen(*given, **more))
        return started[0]

    assert probe_interpreter(str(path), spawn) is None
    assert started[0].wait(600) == -signal.SIGKILL


def test_the_active_environment_comes_before_the_usual_places(node: Node, with_torch: str, plain: str) -> None:
    answer = ask(node, [plain], candidates=["/nowhere/python", with_torch])
    assert answer == {
        "python": with_torch,
        "version": VERSION,
        "torch": "2.8.0+cu128",
        "cuda": "12.8",
        "made": False,
        "why": "the active environment",
    }


def test_without_torch_needed_the_first_python_will_do(node: Node, with_torch: str, plain: str) -> None:
    assert ask(node, [plain, with_torch], needs_torch=False)["python"] == plain
    assert ask(node, [plain, with_torch])["python"] == with_torch


def test_the_usual_places(tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    fake.write_text("")
    fake.chmod(0o755)
    environ = {"PATH": str(tmp_path), "HOME": "/home/ann", "CONDA_PREFIX": "/conda/envs/ml"}
    assert [place.path for place in interpreters.usual_candidates(environ)] == [
        "/opt/pytorch/bin/python",
        "/conda/envs/ml/bin/python",
        "/home/ann/miniconda3/bin/python",
        "/home/ann/anaconda3/bin/python",
        "/opt/conda/bin/python",
        "/opt/miniconda/bin/python",
        str(fake),
        "/usr/bin/python3",
        "/usr/local/bin/python3",
        sys.executable,
    ]


def test_an_environment_is_not_taken_for_the_python_it_was_made_from(with_torch: str) -> None:
    twice = [Candidate(with_torch, "a"), Candidate(with_torch, "b"), Candidate(os.path.realpath(with_torch), "c")]
    assert [candidate.why for candidate in interpreters.distinct_candidates(twice)] == ["a", "c"]


def refusal(node: Node, places: list[str], **args) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(node, places, **args)
    return caught.value


def test_an_explicit_python_is_taken_or_refused(node: Node, with_torch: str, plain: str) -> None:
    assert ask(node, [], explicit=with_torch)["why"] == "given with --python"
    for asked, say in (
        ("/no/python", "there is no Python at '/no/python' on this node"),
        ("env/bin/python", "there is no Python at 'env/bin/python' on this node"),
        ("/bin/cat", "'/bin/cat' does not run as a Python on this node"),
        (plain, f"'{plain}' has no torch"),
    ):
        refused = refusal(node, [with_torch], explicit=asked)
        assert (refused.kind, refused.say, bool(refused.hint)) == ("no-python", say, True)


def test_no_torch_anywhere_and_nothing_to_make(node: Node, plain: str) -> None:
    refused = refusal(node, [plain])
    assert (refused.kind, refused.say) == ("no-python", "no Python on this node has torch")


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small uv on the PATH; returns the file that records what it was asked."""
    log = tmp_path / "uv.log"
    fake_uv(tmp_path / "uv", log)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return log


def fake_uv(path: Path, log: Path, fail: bool = False) -> None:
    path.write_text(FAKE_UV.format(python=sys.executable, log=str(log), fail=fail))
    path.chmod(0o755)


def test_uv_makes_it_once(node: Node, plain: str, uv: Path) -> None:
    items: list[dict] = []
    env = os.path.join(node.root, "env", "abc")
    python = env + "/bin/python"
    answer = ask(node, [plain], items.append, make=MAKE)
    assert answer == {
        "python": python,
        "version": VERSION,
        "torch": "2.9.0+cu126",
        "cuda": "12.6",
        "made": True,
        "why": "made for this project",
    }
    assert items[0] == {"say": f"with {plain}"}
    assert {"say": "Installed torch"} in items
    assert [json.loads(line) for line in uv.read_text().splitlines()] == [
        [None, "venv", "--seed", "--python", plain, env],
        [MAKE["index"], "pip", "install", "--python", python, "torch>=2.4", "torchvision"],
        [
            None,
            "pip",
            "install",
            "--python",
            python,
            "--constraint",
            env + "/constraint.txt",
            "--requirement",
            env + "/requirements.txt",
        ],
    ]
    assert Path(env, "constraint.txt").read_text() == "torch==2.9.0+cu126\n"
    assert Path(env, "requirements.txt").read_text() == "requests\n"
    again = ask(node, [plain], items.append, make=MAKE)
    assert (again["python"], again["made"]) == (python, False)
    assert len(uv.read_text().splitlines()) == 3


def test_other_requirements_are_another_environment(node: Node, plain: str, uv: Path) -> None:
    first = ask(node, [plain], make=MAKE)["python"]
    second = ask(node, [plain], make={**MAKE, "name": "def", "index": ""})
    assert second["made"]
    assert second["python"] != first
    assert json.loads(uv.read_text().splitlines()[4])[0] is None
    assert ask(node, [plain], name="def")["python"] == second["python"], "named, though none is to be made"
    with pytest.raises(Refusal):
        ask(node, [plain])  # another project's environment is not taken


@pytest.mark.usefixtures("uv")
def test_a_half_made_one_is_made_again(node: Node, plain: str) -> None:
    half = venv(Path(os.path.join(node.root, "env", "abc")))
    put_torch(site_of(half))
    assert ask(node, [plain], make=MAKE)["torch"] == "2.9.0+cu126"


@pytest.mark.usefixtures("uv")
def test_one_whose_python_is_gone_is_made_again(node: Node, plain: str) -> None:
    Path(ask(node, [plain], make=MAKE)["python"]).unlink()
    assert ask(node, [plain], make=MAKE)["made"]


def test_two_makers_make_one(node: Node, plain: str, uv: Path) -> None:
    answers: list[dict] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(node, [plain], make=MAKE))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer["python"] for answer in answers}) == 1
    assert len(answers) == 2
    assert uv.read_text().count('"venv"') == 1


def test_a_failure_says_why_and_leaves_nothing(node: Node, plain: str, uv: Path) -> None:
    fake_uv(uv.parent / "uv", uv, fail=True)
    refused = refusal(node, [plain], make=MAKE)
    assert refused.kind == "make-failed"
    assert refused.say == "an environment with torch could not be made: error: No space left on device"
    assert refused.data["tail"] == ["Resolved 3 packages", "Installed torch", "error: No space left on device"]
    assert not Path(os.path.join(node.root, "env", "abc")).exists()


class Gone(Exception):
    pass


@pytest.mark.usefixtures("uv")
def test_a_client_that_leaves_ends_the_making(node: Node, plain: str) -> None:
    def leave(_item: dict) -> None:
        raise Gone

    with pytest.raises(Gone):
        ask(node, [plain], leave, make=MAKE)
    assert not Path(os.path.join(node.root, "env", "abc")).exists()
    assert ask(node, [plain], make=MAKE)["made"]


def test_nothing_that_can_make_one(plain: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    poor = probe_interpreter(plain, subprocess.Popen)
    assert poor is not None
    with pytest.raises(Refusal) as caught:
        environments.choose_base([poor._replace(ensurepip=False)], have_uv=False)
    assert "apt-get install python3-venv" in caught.value.hint
    assert environments.uv_command([poor], os.environ) == []
    assert environments.uv_command([poor._replace(uv=True)], os.environ) == [plain, "-m", "uv"]


def test_a_python_that_torch_runs_on_is_preferred(plain: str) -> None:
    found = probe_interpreter(plain, subprocess.Popen)
    assert found is not None
    old = found._replace(path="old", version=(3, 8, 10))
    assert environments.choose_base([old, found], have_uv=False) == found
    assert environments.choose_base([old], have_uv=False) == old


# -- by pip, for real ----------------------------------------------------------------------------


def wheel(index: Path, name: str, version: str, files: dict[str, str], needs: str = "") -> None:
    """A wheel in a package index of plain files."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    meta = f"{name}-{version}.dist-info/"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    files = {**files, meta + "METADATA": about, meta + "WHEEL": tags}
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(meta + "RECORD", "".join(f"{path},,\n" for path in [*files, meta + "RECORD"]))
    links = "".join(f'<a href="{one.name}">{one.name}</a>\n' for one in folder.glob("*.whl"))
    (folder / "index.html").write_text(links)


def torch_wheel(index: Path, version: str) -> None:
    files = {"torch/__init__.py": "", "torch/version.py": VERSION_PY.format(version, "12.6")}
    wheel(index, "torch", version, files)


def test_pip_keeps_the_torch_of_its_index(
    node: Node, plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_wheel(tmp_path / "cu126", "2.9.0+cu126")
    torch_wheel(tmp_path / "usual", "9.9.9")
    wheel(tmp_path / "usual", "sample", "1.0", {"sample.py": "VALUE = 7\n"}, "Requires-Dist: torch>=2\n")
    usual = (tmp_path / "usual").as_uri()
    torch_wheel(tmp_path / "image", "9.9.9")
    for name, value in {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_INDEX_URL": usual,
        "PIP_EXTRA_INDEX_URL": (tmp_path / "image").as_uri(),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_USER": "1",
        "PYTHONPATH": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    make = {**MAKE, "requirements": ["sample"], "index": (tmp_path / "cu126").as_uri()}
    answer = ask(node, [plain], make=make)
    assert (answer["torch"], answer["cuda"], answer["made"]) == ("2.9.0+cu126", "12.6", True)
    monkeypatch.delenv("PIP_USER")
    value = subprocess.check_output([answer["python"], "-I", "-c", "import sample, torch; print(sample.VALUE)"])
    assert value == b"7\n"

    code, output = set_up(node, "pip install torch==9.9.9", answer["python"], key="newer")
    assert code != 0
    assert b"conflict" in output
    found = probe_interpreter(answer["python"], subprocess.Popen)
    assert found is not None
    assert found.torch == "2.9.0+cu126"


# -- setup ---------------------------------------------------------------------------------------


def set_up(node: Node, command: str, python: str, key: str = "k1", spawn=subprocess.Popen) -> tuple[int, bytes]:
    items: list[dict] = []
    args = {"tree": "project", "command": command, "python": python, "key": key}
    answer = setup.setup(node, args, items.append, spawn)
    assert answer["skipped"] is False
    return answer["code"], b"".join(base64.b64decode(item["b64"]) for item in items if "b64" in item)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_setup_runs_in_the_tree_with_that_python_first(node: Node, with_torch: str) -> None:
    code, output = set_up(node, "pwd; command -v python; cat $PIP_CONSTRAINT; printf '\\xff\\x00' >&2", with_torch)
    assert code == 0
    assert output == f"{node.path('project')}\n{with_torch}\ntorch==2.8.0+cu128\n".encode() + b"\xff\x00"


def test_setup_runs_once_per_key_and_python(node: Node, with_torch: str, plain: str) -> None:
    count = Path(node.path("project", "count"))
    again = {"tree": "project", "command": "echo x >> count", "python": with_torch, "key": "k1"}
    set_up(node, again["command"], with_torch)
    assert setup.setup(node, again, ignore, subprocess.Popen) == {"code": 0, "skipped": True}
    assert count.read_text() == "x\n"
    set_up(node, again["command"], plain)
    set_up(node, again["command"], with_torch, key="k2")
    assert count.read_text() == "x\n" * 3


def test_a_failed_setup_is_not_remembered(node: Node, plain: str) -> None:
    assert set_up(node, "exit 7", plain)[0] == 7
    assert set_up(node, 'test -z "$PIP_CONSTRAINT" && true', plain)[0] == 0


def test_an_images_own_constraint_holds_as_well() -> None:
    joined = setup.setup_environment({"PIP_CONSTRAINT": "/etc/pip.txt", "PATH": "/bin"}, "/env/bin/python", "/ours")
    assert (joined["PIP_CONSTRAINT"], joined["UV_CONSTRAINT"]) == ("/ours /etc/pip.txt", "/ours")
    assert joined["PATH"] == "/env/bin:/bin"


def test_a_client_that_leaves_ends_the_setup(node: Node, plain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "TERM_GRACE_S", 0.2)

    def leave(item: dict) -> None:
        if "b64" in item:  # else it only says that it goes on
            pids.append(int(base64.b64decode(item["b64"])))
            raise Gone

    pids: list[int] = []
    args = {"tree": "project", "command": "trap '' TERM; sleep 600 & echo $!; wait", "python": plain, "key": "k"}
    with pytest.raises(Gone):
        setup.setup(node, args, leave, subprocess.Popen)
    deadline = time.monotonic() + 600
    while alive(pids[0]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pids[0])


def test_setup_does_not_wait_for_what_it_leaves_behind(node: Node, plain: str) -> None:
    code, output = set_up(node, "sleep 600 & echo $!", plain)
    try:
        assert code == 0
        assert alive(int(output))
    finally:
        os.kill(int(output), 9)


def test_setup_without_a_tree(node: Node, plain: str) -> None:
    with pytest.raises(Refusal, match="nothing was pushed as 'train' yet"):
        setup.setup(node, {"tree": "train", "command": "x", "python": plain, "key": "k"}, print, subprocess.Popen)


# -- streamed ------------------------------------------------------------------------------------


def test_a_silent_command_beats_and_its_limit_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "BEAT_INTERVAL_S", 0.2)
    monkeypatch.setattr(environments, "POLL_INTERVAL_S", 0.05)
    looks = itertools.count(0.0, 0.3)  # by this clock no machine is busy
    monkeypatch.setattr(environments, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    beats: list[int] = []
    argv = ["sh", "-c", "exec >&- 2>&-; sleep 600"]
    assert (
        environments.run_streaming(argv, beats.append, lambda: beats.append(1), subprocess.Popen, timeout_s=1.0) is None
    )
    assert beats


def test_every_byte_of_a_quick_command_arrives() -> None:
    chunks: list[bytes] = []
    code = environments.run_streaming(["sh", "-c", "seq 100000; exit 3"], chunks.append, lambda: None, subprocess.Popen)
    assert code == 3
    assert b"".join(chunks) == b"".join(b"%d\n" % n for n in range(1, 100001))


def test_lines_are_whole_and_carriage_returns_end_them() -> None:
    items: list[dict] = []
    lines = environments.LineReporter(items.append)
    for chunk in (b"Coll", b"ecting\n10%\r20", b"%\r\nERROR: no wheel\n\nhint: see above"):
        lines.feed(chunk)
    assert lines.error_line() == "ERROR: no wheel"
    assert [item["say"] for item in items] == ["Collecting", "10%", "20%", "ERROR: no wheel", "hint: see above"]
