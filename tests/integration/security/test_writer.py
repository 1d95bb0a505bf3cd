"""What comes from a node is written where it belongs, whatever the node says: over a real cluster whose agent lies, and
by the writer itself with any path and links at every level."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuops.core import safe_folder
from gpuops.core.errors import GpuopsError, NodeError, UsageError
from gpuops.core.platform import System
from gpuops.core.safe_folder import SafeFolder
from gpuops.core.safe_paths import is_gits, is_inside
from gpuops.sync.archive import unpack
from gpuops.sync.download import Reception, receive_files
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_journal import DOCUMENT_FILE, JOURNAL_FILE
from gpuops.sync.merged_outputs_record import Arrival
from gpuops.sync.project_files import read_entry
from gpuops.sync.run_folder import RunHome
from gpuops.sync.run_record import RunRecord
from gpuops.sync.unmatched_files import UnmatchedFile, save_unmatched_files
from tests.conftest import Shell
from tests.integration.security.hostile import a_file, a_link, tar_of

HOSTILE = [
    "../x", "/etc/x", "a/../../x", "a//b", ".", "..", "", "a/.", "a\0b", ".git/config", ".git", "a/.git/hooks/x",
    ".GIT/config", ".Git", "GIT~1/config", "git~1", ".git./x", ".git /x", ".git::$INDEX_ALLOCATION/config",
    ".g\u200cit/config", "\ud800/x", "./x", "x/", "a/./b", ".git . ./config", "sub/.GIT/hooks/post-checkout",
]  # fmt: skip
"""Paths that nothing may have."""


@pytest.fixture(params=["handles", "looks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As Linux and macOS do it, and as Windows does."""
    if request.param == "looks":
        monkeypatch.setattr(safe_folder, "HAS_HANDLES", False)
    return str(request.param)


def everything(folder: Path) -> dict[str, object]:
    """Whatever lies below: bytes of files, targets of links."""
    found: dict[str, object] = {}
    for base, names, files in os.walk(folder):
        for name in [*files, *names]:
            path = Path(base, name)
            if path.is_symlink():
                found[str(path)] = os.readlink(path)
            elif path.is_file():
                found[str(path)] = (path.read_bytes(), path.stat().st_mode)
            else:
                found[str(path)] = None
    return found


# --- edits, over a real cluster ---------------------------------------------------------------


EDITS = """
OFFERED, TAR, PUSHED = {offered!r}, bytes.fromhex({tar!r}), {pushed!r}
def answer(node, verb, args, message):
    if verb == "edits":
        files = [{{"path": path, "state": "changed", "size": 1, "pushed": PUSHED}} for path in OFFERED]
        return {{"id": message["id"], "ok": {{"files": files}}}}
    return message
def bulk(node, mode, arguments, stdin):
    return TAR if mode == "send" else None
"""


@pytest.fixture
def lab(shell: Shell, lie: Callable[[str], None]) -> Shell:
    """A cluster that a repository was pushed to."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    subprocess.run(["git", "init", "-q"], cwd=shell.folder, check=True)
    shell.write("train.py", "print(1)\n")
    shell.write("run.sh", "#!/bin/sh\n").chmod(0o644)
    (shell.folder / "latest").symlink_to("train.py")
    (shell.folder / "data").symlink_to("../elsewhere")
    (shell.folder.parent / "elsewhere").mkdir()
    lie("")
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    pushed = shell.run("push")
    assert pushed.returncode == 0, pushed.stderr
    return shell


def pull(
    lab: Shell, lie: Callable[[str], None], offered: list[str], tar: bytes, pushed: object = None
) -> subprocess.CompletedProcess[str]:
    lie(EDITS.format(offered=offered, tar=tar.hex(), pushed=pushed))
    done = lab.run("pull", "--edits")
    assert "Traceback" not in done.stderr
    return done


def around(lab: Shell) -> dict[str, object]:
    """The project, and what lies beside it."""
    beside = {str(path): None for path in lab.folder.parent.iterdir()}
    return {**everything(lab.folder), **everything(lab.folder.parent / ".ssh"), **beside}


PLANTED = ["h", "h/pre-commit", "notes", "notes/authorized_keys", ".git/hooks/pre-commit", "gpuops.toml", ".env",
           ".envrc", "conftest.py", ".vscode/tasks.json", ".github/workflows/x.yml"]  # fmt: skip


def test_a_node_brings_nothing_that_was_not_pushed(lab: Shell, lie: Callable[[str], None]) -> None:
    """A link into git's folder and one above the project, files below them, and what tools execute unasked."""
    tar = tar_of([
        a_link("h", ".git/hooks"), a_file("h/pre-commit", b"#!/bin/sh\ntouch /tmp/pwned\n", 0o755),
        a_link("notes", "../.ssh"), a_file("notes/authorized_keys", b"ssh-ed25519 AAAA attacker\n"),
        *(a_file(name, b"planted") for name in PLANTED[4:]),
    ])  # fmt: skip
    (lab.folder.parent / ".ssh").mkdir()
    before = around(lab)
    done = pull(lab, lie, PLANTED, tar)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-2:] == [
        "error: not brought home: node0: h was not pushed there from this computer (and 10 more)",
        "hint: if you know what was edited, `gpuops down` saves it in runs/lab-left, beside the project",
    ]
    assert around(lab) == before


def test_what_is_refused_keeps_no_honest_edit_away(lab: Shell, lie: Callable[[str], None]) -> None:
    """A file does not become executable, a link stays in the project, and another becomes none."""
    tar = tar_of([
        a_file("run.sh", b"#!/bin/sh\nedited\n", 0o4777), a_link("latest", "../../.bashrc"), a_link("train.py", "x"),
    ])  # fmt: skip
    done = pull(lab, lie, [".envrc", "run.sh", "latest", "train.py"], tar)
    assert done.returncode == 4
    assert "run.sh came home from node0" in done.stderr
    refused = "latest is a link that was none, or leads out of the project (and 1 more)"
    assert f"not brought home: node0: .envrc was not pushed there from this computer; {refused}" in done.stderr
    assert (lab.folder / "run.sh").read_text() == "#!/bin/sh\nedited\n"
    assert (lab.folder / "run.sh").stat().st_mode & 0o7777 == 0o644
    assert os.readlink(lab.folder / "latest") == "train.py"
    assert (lab.folder / "train.py").read_text() == "print(1)\n"


def test_a_node_does_not_say_what_was_pushed(lab: Shell, lie: Callable[[str], None]) -> None:
    """It claims that ours is as it was, and sends what was not asked for."""
    lab.write("train.py", "mine, changed here\n")
    now = read_entry(lab.folder, "train.py")
    assert now is not None
    done = pull(lab, lie, ["train.py"], tar_of([a_file("train.py", b"theirs\n")]), now.wire[1:])
    assert done.returncode == 0, done.stderr
    assert (lab.folder / "train.py").read_text() == "mine, changed here\n"
    assert (lab.folder / "train.py.node0").read_text() == "theirs\n"
    before = everything(lab.folder)
    done = pull(lab, lie, ["train.py"], tar_of([a_file("run.sh", b"x"), a_file(".envrc", b"x")]))
    assert done.returncode == 4
    assert "node0 answers nonsense ('run.sh' was not asked for" in done.stderr
    assert everything(lab.folder) == before


@pytest.mark.parametrize("link", [
    "/etc/passwd", "../x", "../../x", ".git/hooks", "a/../../x", "data/x", ".GIT/config", "..", ".", "", "a//b",
])  # fmt: skip
def test_where_a_link_may_lead(tmp_path: Path, link: str) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "data").symlink_to("../elsewhere")
    folder = SafeFolder(tmp_path / "project")
    assert not folder.stays_inside("latest", link)
    assert folder.stays_inside("latest", "train.py")
    assert folder.stays_inside("sub/latest", "../train.py")
    assert not folder.stays_inside("sub/latest", "../../train.py")


def test_another_computers_push_is_no_record_here(lab: Shell, lie: Callable[[str], None]) -> None:
    shutil.rmtree(lab.home / "pushed")
    done = pull(lab, lie, ["train.py"], tar_of([a_file("train.py", b"theirs")]))
    assert done.returncode == 4
    assert "train.py was not pushed there from this computer" in done.stderr
    assert "`gpuops down` saves it in runs/lab-left" in done.stderr
    assert (lab.folder / "train.py").read_text() == "print(1)\n"


def test_the_record_goes_with_its_cluster(lab: Shell, lie: Callable[[str], None]) -> None:
    assert len(list((lab.home / "pushed").glob("*/project-node0.json"))) == 1
    lie("")
    assert lab.run("down").returncode == 0
    assert [path.name for path in (lab.home / "pushed").iterdir()] == [".lock"]


# --- results, over a real cluster --------------------------------------------------------------


def test_a_run_brings_its_results_and_nothing_of_gits(shell: Shell, lie: Callable[[str], None]) -> None:
    """A configuration of git's in `outputs/`, an agent that offers it, and links where the run's folder is."""
    content = b"[core]\n\tfsmonitor = touch pwned\n"
    names = ["outputs/sub/.git/config", "../../x.pt", ".GIT/x.pt"]
    lie(f"""
def answer(node, verb, args, message):
    if verb == "outs" and "ok" in message:
        message["ok"]["files"] += [[name, {len(content)}, 1] for name in {names!r}]
    return message
""")
    shell.write("job.py", "import os\nos.makedirs('outputs')\nopen('outputs/a.pt', 'w').write('made')\n")
    done = shell.run("run", "--nodes", "1", "--", "python3", "job.py")
    assert done.returncode == 0, done.stderr
    assert "node0 offers outputs/sub/.git/config and 2 more: not brought home" in done.stderr
    made = [path for path in (shell.folder / "runs").rglob("*") if path.is_file() and "outputs" in path.parts]
    assert [path.name for path in made] == ["a.pt"]
    shell.expect_clean()


# --- a repository that brings `runs/` along ------------------------------------------------------


def test_runs_as_a_link_counts_unless_git_tracks_it(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    (tmp_path / "project").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "project" / "runs").symlink_to("../disk")
    home = RunHome(tmp_path / "project" / "runs" / "r-1")
    home.create()
    assert (tmp_path / "disk" / "r-1" / "out").is_dir(), "a bigger disk of the user's own"
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "project", check=True)
    subprocess.run(["git", "add", "-f", "runs"], cwd=tmp_path / "project", check=True)
    with pytest.raises(UsageError, match="is a link that git tracks"):
        home.create()


def planted(folder: Path, link: str, target: Path) -> None:
    (folder / link).parent.mkdir(parents=True, exist_ok=True)
    (folder / link).symlink_to(target)


@pytest.mark.parametrize(
    "link",
    [
        "runs/r-1", "runs/r-1/out", "runs/r-1/logs", "runs/r-1/logs/node0", "runs/r-1/logs/node0/launcher.out",
        "runs/r-1/incoming", "runs/r-1/out/sub", "runs/r-1/out/sub/a.pt", "runs/r-1/out/.gpuops.json",
        "runs/r-1/out/.gpuops.jsonl", "runs/r-1/.publish.tmp", "runs/r-1/run.json", "runs/.lock", "runs/.gitignore",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("way")
def test_below_runs_no_link_is_followed(tmp_path: Path, link: str) -> None:
    """One that leads to a folder, and one to a file that is or is not there: what is there stays as it is."""
    for number, name in enumerate(("folder", "file", "absent")):
        outside, project = tmp_path / f"{number}" / "outside", tmp_path / f"{number}" / "project"
        (outside / "folder").mkdir(parents=True)
        (outside / "folder" / "kept").write_text("mine")
        (outside / "file").write_text("mine")
        planted(project, link, outside / name)
        before = everything(outside)
        home = RunHome(project / "runs" / "r-1")
        for act in (home.create, lambda home=home: home.write_record(RunRecord()), lambda home=home: publish(home),
                    lambda home=home: log(home), lambda home=home: OutFolder(home).clear_dead(),
                    home.flush):  # fmt: skip
            with suppress(GpuopsError, OSError):
                act()
        assert everything(outside) == before


def publish(home: RunHome) -> None:
    out = OutFolder(home)
    with out.staging() as staging:
        sha256 = staging.create("0-0", io.BytesIO(b"x"), 1)
        out.publish([Arrival(0, "sub/a.pt", (1, 0), sha256, "0-0")], staging)


def log(home: RunHome) -> None:
    home.folder.write_at(home.log_name(0, "launcher.out"), 0, b"line\n")


@pytest.mark.parametrize("place", ["../../x", "/etc/x", ".git/config", 3])
def test_a_memory_that_was_brought_along_leads_nowhere(tmp_path: Path, place: Any) -> None:
    home = RunHome(tmp_path / "runs" / "r-1")
    home.create()
    held, written = {"0": [[1, 1], "s", place]}, {str(place) if place != 3 else "..": ["s", []]}
    (home.out / DOCUMENT_FILE).write_text(json.dumps({"held": {"a.pt": held}, "written": {}}))
    assert OutFolder(home).memory().held == {}
    lines = [{"schema": 1, "journal": "x"}, {"path": "a.pt", "held": held, "written": {}},
             {"path": "b.pt", "held": {}, "written": written}]  # fmt: skip
    (home.out / JOURNAL_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    memory = OutFolder(home).memory()
    assert (memory.held, memory.written) == ({}, {})


@pytest.mark.usefixtures("way")
def test_what_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every log, whatever way there is to it, and nothing that a link or a pipe leads to."""
    home = RunHome(tmp_path / "runs" / "r-1")
    home.flush()  # nothing is there yet
    log(home)
    (tmp_path / "mine").write_text("mine")
    planted(home.path, "logs/node0/mine", tmp_path / "mine")
    os.mkfifo(home.path / "logs" / "node0" / "pipe")
    flushed: set[int] = set()
    monkeypatch.setattr(safe_folder.os, "fsync", lambda handle: flushed.add(os.fstat(handle).st_ino))
    home.flush()
    assert home.log(0, "launcher.out").stat().st_ino in flushed
    assert (tmp_path / "mine").stat().st_ino not in flushed


# --- the writer itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", HOSTILE)
@pytest.mark.usefixtures("way")
def test_what_no_file_may_be_called(tmp_path: Path, path: str) -> None:
    assert not is_inside(path)
    (tmp_path / "folder").mkdir()
    before = everything(tmp_path)
    folder = SafeFolder(tmp_path / "folder")
    acts: list[Callable[[], object]] = [
        lambda: folder.create(path, io.BytesIO(b"x"), 1), lambda: folder.write_at(path, 0, b"x"),
        lambda: folder.link(path, "x"), lambda: folder.reading(path), lambda: folder.look(path),
    ]  # fmt: skip
    for act in acts:
        with pytest.raises((NodeError, OSError)):
            act()
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", ["git", ".gitignore", ".github", "gita", "a.git", ".gitmodules", "git~2", "x.git:y"])
def test_what_is_not_gits(name: str) -> None:
    assert not is_gits(name)


NAMES = ["a", "b", "link", "..", ".", "", ".git", "GIT~1", "out", "é", "x y", "..\\z", "\udcff"]
PART = st.sampled_from(NAMES) | st.text(max_size=5)
PATH = st.lists(PART, max_size=5).map("/".join) | st.text(max_size=12)
LEVELS = ["a", "a/b", "a/b/link", "link", "out", "out/a", "b"]


def test_any_path_with_links_planted_between_any_two_writes(
    tmp_path_factory: pytest.TempPathFactory, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing outside the folder changes, whatever is written, moved or removed; what is refused is refused cleanly."""
    counts = {"tried": 0, "refused": 0}
    act = st.sampled_from(["create", "write", "write_at", "move", "remove", "prune", "tree", "plant"])
    acts = st.lists(st.tuples(act, PATH, st.sampled_from(LEVELS)), max_size=8)

    def check(steps: list[tuple[str, str, str]]) -> None:
        root = tmp_path_factory.mktemp("any")
        (root / "outside" / "a").mkdir(parents=True)
        (root / "outside" / "a" / "kept").write_text("mine")
        folder = SafeFolder(root / "folder")
        (root / "folder").mkdir()
        before = everything(root / "outside")
        for act, path, level in steps:
            if act == "plant":
                with suppress(OSError):
                    place = root / "folder" / level
                    place.symlink_to(root / "outside" / ("a" if len(path) % 2 else "a/kept"))
                continue
            counts["tried"] += 1
            try:
                perform(folder, act, path)
            except (NodeError, OSError):
                counts["refused"] += 1
        assert everything(root / "outside") == before
        assert {one.name for one in root.iterdir()} == {"outside", "folder"}
        shutil.rmtree(root)

    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    given(acts)(settings(max_examples=200, derandomize=True, deadline=None, database=None,
                         suppress_health_check=quiet)(check))()  # fmt: skip
    assert counts["refused"] > 100
    with capsys.disabled():
        print(f"\n{way}: {counts['tried']} writes by any path, {counts['refused']} of them refused")


def perform(folder: SafeFolder, act: str, path: str) -> None:
    if act == "create":
        folder.create(path, io.BytesIO(b"theirs"), 6, mtime_ns=1)
    elif act == "write":
        folder.write(path, io.BytesIO(b"theirs"), 6)
    elif act == "write_at":
        folder.write_at(path, 0, b"theirs")
    elif act == "move":
        draft = folder.draft("x")
        folder.create(draft, io.BytesIO(b"theirs"), 6)
        folder.move(folder, draft, path)
    elif act == "remove":
        folder.remove(path)
    elif act == "prune":
        folder.remove_empty(path)
    else:
        folder.remove_tree(path)


@pytest.mark.usefixtures("way")
def test_a_link_that_takes_a_folders_place_between_two_writes(tmp_path: Path) -> None:
    folder = SafeFolder(tmp_path / "folder")
    (tmp_path / "outside").mkdir()
    folder.create("sub/one", io.BytesIO(b"1"), 1)
    shutil.rmtree(tmp_path / "folder" / "sub")
    (tmp_path / "folder" / "sub").symlink_to("../outside")
    with pytest.raises(OSError, match="a link is in the way"):
        folder.create("sub/two", io.BytesIO(b"2"), 1)
    with pytest.raises(OSError, match="a link is in the way"):
        folder.write_at("sub/two", 0, b"2")
    assert list((tmp_path / "outside").iterdir()) == []


# --- all of it, counted --------------------------------------------------------------------------


KINDS = {"file": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE, "folder": tarfile.DIRTYPE,
         "pipe": tarfile.FIFOTYPE, "device": tarfile.CHRTYPE, "sparse": tarfile.GNUTYPE_SPARSE}  # fmt: skip


def hostile_members() -> Iterator[tuple[str, bytes]]:
    """Each hostile path as each kind of member: a tar of it, and of a file behind it that a link would lead away."""
    for path in HOSTILE:
        for kind in KINDS.values():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = kind, "../../outside"
            behind = tarfile.TarInfo(f"{path}/behind")
            member.size = behind.size = 0
            with suppress(UnicodeError):
                heads = [one.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") for one in (member, behind)]
                yield path, b"".join(heads) + bytes(10240)


class Sender:
    """A node whose `send` has just these bytes to give."""

    label = "node0"

    def __init__(self, stream: bytes) -> None:
        self.stdin, self.stdout = io.BytesIO(), io.BytesIO(stream)

    def bulk(self, *_: str) -> Sender:
        return self

    def wait(self, timeout: float | None = None) -> int:  # noqa: ARG002 (a channel's signature)
        return 0

    def errors(self) -> str:
        return ""

    def close(self) -> None:
        pass


def test_hostile_members_by_every_way_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even where the list that was asked for names them: nothing appears outside of the folder, nor of git's in it."""
    counts = dict.fromkeys(("results", "archives", "saved files", "logs"), 0)
    (tmp_path / "outside").mkdir()
    home = RunHome(tmp_path / "project" / "runs" / "r-1")
    home.create()
    out = OutFolder(home)

    def results(node: Any, path: str) -> None:
        with out.staging() as staging:
            reception = Reception(staging, lambda _: None)
            asked = {path: (0, 1), f"{path}/behind": (0, 1)}
            try:
                receive_files(node, "r-1", 0, asked, reception)
            finally:
                out.publish(list(reception.received.values()), staging)

    def archives(node: Any, _path: str) -> None:
        with out.staging() as staging:
            out.publish(unpack(node.stdout, 0, staging, lambda _: None).arrivals, staging)

    def saved(node: Any, path: str) -> None:
        asked = [UnmatchedFile(0, name, 0, 1, False) for name in (path, f"{path}/behind")]
        save_unmatched_files(node, "project", asked, home.folder.below("saved"))

    before = everything(tmp_path / "outside")
    for way, act in (("results", results), ("archives", archives), ("saved files", saved)):
        for path, stream in hostile_members():
            counts[way] += 1
            with suppress(GpuopsError):
                act(Sender(stream), path)
    for name in [*HOSTILE, "a/b", ".hidden", "rank0.out\n", "x" * 65, "a.b.c"]:
        counts["logs"] += 1
        with pytest.raises(NodeError):
            home.log_name(0, name)
    assert everything(tmp_path / "outside") == before
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "project"}
    there = [path for path in (tmp_path / "project").rglob("*") if path.is_symlink() or is_gits(path.name)]
    assert not there
    assert {path.name for path in home.path.iterdir()} <= {"out", "saved"}
    assert not [path for path in home.path.rglob("*") if path.is_file() and path.name != JOURNAL_FILE]
    with capsys.disabled():
        print("\nhostile members refused: " + ", ".join(f"{count} {way}" for way, count in counts.items()))


# --- that it stays so ----------------------------------------------------------------------------


SYNC = (
    "pull_edits",
    "restore_snapshots",
    "merged_outputs",
    "merged_outputs_journal",
    "merged_outputs_record",
    "archive",
    "download",
    "unmatched_files",
)
WAYS_HOME = [
    *(f"sync/{name}" for name in SYNC),
    "runs/results/dead_agents",
    "transport/bulk_transfer",
    "transport/tar_reader",
]
WRITES = {"open", "write_text", "write_bytes", "read_text", "read_bytes", "mkdir", "touch", "unlink", "rename", "rmdir",
          "symlink_to", "hardlink_to", "symlink", "makedirs", "rmtree", "copyfileobj", "utime", "chmod"}  # fmt: skip
ALLOWED = {("transport/bulk_transfer", "open")}


@pytest.mark.parametrize("module", WAYS_HOME)
def test_nothing_else_opens_what_a_node_named(module: str) -> None:
    """`tarstream` opens the user's own files, on their way to a node."""
    import ast

    source = (Path(safe_folder.__file__).parents[1] / f"{module}.py").read_text(encoding="utf-8")
    called = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            called.add((module, name))
        if isinstance(node, ast.Import):
            assert not {"tempfile", "tarfile"} & {alias.name for alias in node.names}
    assert {one for one in called if one[1] in WRITES} <= ALLOWED


@pytest.mark.parametrize("path", ["..\\x", "C:\\x", "C:x", "aux", "x.", "a\\..\\..\\x", "x:stream"])
def test_a_backslash_or_a_colon_leads_nowhere_on_windows(tmp_path: Path, path: str) -> None:
    with pytest.raises(NodeError):
        SafeFolder(tmp_path, system=System("windows")).create(path, io.BytesIO(b"x"), 1)
