"""Wrong files, folders, plug-ins and ledgers: each has its sentence, one thing to do and its exit code, and nothing of
the user's is changed by it.

A row is a world and a command. `say` and `hint` are patterns for the whole text; `{folder}` and `{home}` stand for
those of the test. Whatever else is printed is a note.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuops.core.models import Lease, Resource
from gpuops.core.processes import Identity
from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.ledger.store import Ledger
from tests.conftest import give_away, open_folder, without_root
from tests.desk import Desk

DRY = ("run", "--dry-run", "--", "true")
TRAIN = ("train", "multinode", "a.py")
CORRECT = "correct the file, or remove it"
DEAD = Identity(1, 0.5)
"""A process that is not there any more: its number is another's."""


@dataclass(frozen=True)
class Row:
    what: str
    world: Callable[[Desk, pytest.MonkeyPatch], object]
    words: tuple[str, ...]
    say: str
    hint: str
    code: int = 2


def nothing(_desk: Desk, _patch: pytest.MonkeyPatch) -> None:
    """An empty project, a home that was never used."""


def file(name: str, content: str | bytes = "") -> Callable[[Desk, pytest.MonkeyPatch], None]:
    """A file of the project; of gpuops' own folder where its name begins with `~`."""

    def make(desk: Desk, _patch: pytest.MonkeyPatch) -> None:
        path = desk.home / name[1:] if name.startswith("~") else desk.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def folder(name: str) -> Callable[[Desk, pytest.MonkeyPatch], None]:
    def make(desk: Desk, _patch: pytest.MonkeyPatch) -> None:
        (desk.home / name[1:] if name.startswith("~") else desk.folder / name).mkdir(parents=True)

    return make


def environment(**variables: str | None) -> Callable[[Desk, pytest.MonkeyPatch], None]:
    def make(_desk: Desk, patch: pytest.MonkeyPatch) -> None:
        for name, value in variables.items():
            patch.setenv(name, value) if value is not None else patch.delenv(name, raising=False)

    return make


def homeless(desk: Desk, patch: pytest.MonkeyPatch) -> None:
    """A user that no line of /etc/passwd knows, as in a container started with --user."""
    environment(HOME=None, GPUOPS_HOME=None)(desk, patch)

    def unknown(_cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    patch.setattr(Path, "home", classmethod(unknown))


def underfoot(desk: Desk, _patch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(desk.folder)


def pipe(desk: Desk, _patch: pytest.MonkeyPatch) -> None:
    os.mkfifo(desk.folder / "a.py")


def loop(desk: Desk, _patch: pytest.MonkeyPatch) -> None:
    (desk.folder / "a.py").symlink_to("a.py")


def known(desk: Desk, _patch: pytest.MonkeyPatch) -> None:
    """`lab`, of another folder, with a run that is home; and a clock that was set back since."""
    desk.home.mkdir()
    ledger = Ledger.open(desk.home)
    row = ledger.intend(provider="local", name="lab", folder=Path("/elsewhere"), ephemeral=False, token="t", request={},
                        boot_deadline=0.0, lease=Lease(), owner_process=DEAD, now=4e9)  # fmt: skip
    ledger.set_cluster(row.id, state="up", owner_process=None, ready=4e9)
    ledger.got(row.id, Resource("machine", "/nowhere/n0", "local", "gpuops-0-lab-0", bills=False))
    request = {"kind": "torchrun", "mode": "multinode", "nodes": 2, "gpus": 1, "script": "a.py"}
    run = ledger.add_run(stem="a", cluster=row.id, folder=desk.folder, tree="project", request=request,
                         facts={"world": 2}, owner_process=DEAD, now=4e9)  # fmt: skip
    ledger.set_run(run.id, state="home", owner_process=None)
    ledger.close()
    desk.write("a.py", "")
    desk.write("runs/a-1/out/model.pt", "")


def unstarted(desk: Desk, patch: pytest.MonkeyPatch) -> None:
    """The run that is known never came to its start."""
    known(desk, patch)
    ledger = Ledger.open(desk.home)
    ledger.set_run(ledger.runs()[0].id, verdict=Verdict(VerdictOutcome.FAILED, 2, "not started: no Python"))
    ledger.close()
    shutil.rmtree(desk.folder / "runs")


def damaged(column: str, value: object) -> Callable[[Desk, pytest.MonkeyPatch], None]:
    """A row of the ledger that SQLite takes for sound."""

    def make(desk: Desk, patch: pytest.MonkeyPatch) -> None:
        known(desk, patch)
        table, name = column.split(".")
        with sqlite3.connect(desk.home / "ledger.db") as db:
            db.execute(f"UPDATE {table} SET {name} = ?", (value,))
        db.close()

    return make


def plugin(code: str) -> Callable[[Desk, pytest.MonkeyPatch], None]:
    """A stranger's wheel that brings the provider `moon`."""

    def make(desk: Desk, patch: pytest.MonkeyPatch) -> None:
        site = desk.home.parent / "site"
        metadata = site / "moon-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: moon\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[gpuops.provisioners]\nmoon = moon_{abs(hash(code))}:Moon\n")
        (site / f"moon_{abs(hash(code))}.py").write_text(code)
        patch.syspath_prepend(str(site))

    return make


OLD = "class Moon:\n    contract = 0\n    name = 'moon'\n    def __init__(self, context): pass\n"
UNABLE = r"the ledger {home}/ledger\.db cannot be used: unable to open database file"
CHECK = "check the folder's permissions and free space"
DAMAGED = r"the ledger {home}/ledger\.db is damaged: a row of it cannot be read"
ASIDE = r"keep it aside \(mv {home}/ledger\.db .*\), then take back what lives: gpuops reap --adopt"
ROWS = [
    # .env and gpuops.toml.
    Row(".env that is no UTF-8", file(".env", b"A=\xe4\n"), DRY, r"{folder}/\.env cannot be read: it is not UTF-8",
        "make it a text file in UTF-8"),
    Row("gpuops.toml that is a folder", folder("gpuops.toml"), DRY, r"{folder}/gpuops\.toml is a folder",
        "settings stand in a file of that name: rename the folder"),
    Row("gpuops.toml that is no UTF-8", file("gpuops.toml", b"[run]\nregion = '\xe4'\n"), DRY,
        r"{folder}/gpuops\.toml cannot be read: it is not UTF-8", CORRECT),
    Row("gpuops.toml of zeros", file("gpuops.toml", b"\0" * 100), DRY, r"{folder}/gpuops\.toml cannot be read: .*",
        CORRECT),
    Row("gpuops.toml too deep", file("gpuops.toml", "a = " + "[" * 3000 + "]" * 3000), DRY,
        r"{folder}/gpuops\.toml cannot be read: .*", CORRECT),
    Row("toml: no table", file("gpuops.toml", "nodes = 2\n"), DRY, r".*gpuops\.toml: nodes stands in no table",
        r"put it under \[run\] or \[train\] or \[up\]"),
    Row("toml: true for a number", file("gpuops.toml", "[run]\nnodes = true\n"), DRY,
        r".*\[run\]: nodes must be a whole number, not true", "correct the value"),
    Row("toml: a day for a number", file("gpuops.toml", "[run]\nnodes = 1979-05-27\n"), DRY,
        r".*\[run\]: nodes must be a whole number, not 1979-05-27", "correct the value"),
    Row("toml: text for a list", file("gpuops.toml", "[run]\nout = '*.pt'\n"), DRY,
        r".*\[run\]: out must be a list of texts, not '\*\.pt'", "correct the value"),
    Row("toml: numbers in a list", file("gpuops.toml", "[run]\nout = [1]\n"), DRY,
        r".*\[run\]: out must be a list of texts, not \[1\]", "correct the value"),
    Row("toml: an identity", file("gpuops.toml", "[up]\nidentity = '~/.ssh/id'\n"), DRY,
        r".*\[up\]: identity may not be set in a file", "use the flag --identity"),
    Row("toml: a proxy", file("gpuops.toml", "[run]\nhttps_proxy = 'evil:1'\n"), DRY,
        r".*\[run\]: https_proxy may not be set in a file", "use the flag --https-proxy"),
    Row("toml: no limit", file("gpuops.toml", "[run]\ntimeout = inf\n"), DRY,
        "--timeout inf is no limit that can be kept", "--timeout takes a number above 0"),
    Row("toml: too few", file("gpuops.toml", "[run]\nnodes = 0\n"), DRY, "--nodes 0 is too few",
        "--nodes takes a number from 1"),
    Row("toml: nothing", file("gpuops.toml", "[run]\ncluster = ''\n"), DRY, "--cluster is empty",
        "give it a value, or leave it out"),
    # Folders.
    Row("a project deleted underfoot", underfoot, ("status",), "the current folder does not exist any more",
        r"go to your project's folder: cd …"),
    Row("a project deleted before a run", underfoot, DRY, "the current folder does not exist any more",
        r"go to your project's folder: cd …"),
    Row("HOME that is relative", environment(HOME="here", GPUOPS_HOME=None), ("status",),
        "HOME is 'here', which is not an absolute path", "give the whole path, from / on"),
    Row("no HOME at all", homeless, ("status",), "no home folder is known for this user",
        "set HOME, or GPUOPS_HOME to a folder"),
    Row("a mark that is a folder", folder("~owner"), ("status",),
        "gpuops cannot keep its mark in {home}/owner: Is a directory",
        "it is a file: see that it can be written and the disk has space", 4),
    Row("gpuops' own folder as project", environment(GPUOPS_HOME="{folder}"), DRY,
        "{folder} is gpuops' own folder, not a project", "start gpuops in your project's folder"),
    Row("a repository that is none", file(".git", "garbage"), DRY, "git cannot read this repository: .*",
        "make `git status` work here first"),
    # Scripts and data.
    Row("a script that is a pipe", pipe, TRAIN, r"a\.py is no file that Python could run", "name your training script"),
    Row("a script that leads to itself", loop, TRAIN,
        r"the script a\.py cannot be looked up: Too many levels of symbolic links", "check the path"),
    Row("a script without a name", nothing, ("train", "single", ""), "SCRIPT is empty",
        "name what to train, or leave it out"),
    Row("a script named in two lines", nothing, ("train", "single", "a\nb.py"), r"there is no script a b\.py",
        "check the path; .*"),
    Row("a command without a name", nothing, ("run", "--", ""), "there is no command to run",
        "write it behind `--`: gpuops run -- python3 hello.py"),
    Row("a variable in two lines", nothing, ("run", "--env", "A\nB=1", "--", "true"), "--env A B=1 names no variable",
        "write --env NAME=VALUE, or --env NAME for your own value"),
    Row("a secret without a name", nothing, ("run", "--secret", "", "--", "true"),
        "--secret takes a variable's name, not '…'", "give the name alone: .*"),
    *(Row(f"an empty --{name}", nothing, ("run", f"--{name}", "", "--", "true"), f"--{name} is empty",
          "give it a value, or leave it out") for name in ("cluster", "on", "resume", "python", "data", "region")),
    # Numbers that no machine can bear.
    Row("nodes: many", nothing, ("up", "local", "--nodes", "100000"),
        "100000 nodes are more than this machine can bear, at most 128", "ask for fewer --nodes or --gpus", 3),
    Row("nodes: without end", nothing, ("up", "local", "--nodes", "9" * 30), "9+ nodes are more than this .*",
        "ask for fewer --nodes or --gpus", 3),
    Row("ranks: many", nothing, ("train", "multinode", "--gpus", "100000"),
        "200000 ranks are more than this machine can bear, at most 1024", "ask for fewer --nodes or --gpus", 3),
    Row("4 GPUs where 2 are", environment(CUDA_VISIBLE_DEVICES="0,1"), ("up", "local", "--gpus", "4"),
        "--gpus 4 was asked for, this machine has 2", "ask for --gpus 2 or fewer", 3),
    Row("2 nodes of 2 GPUs where 2 are", environment(CUDA_VISIBLE_DEVICES="0,1"),
        ("up", "local", "--gpus", "2", "--nodes", "2"), "2 nodes with 2 GPUs each need 4, this machine has 2",
        "ask for --gpus 1, or for fewer --nodes", 3),
    Row("hours: for ever", nothing, ("up", "local", "--max-hours", "1e300"),
        r"--max-hours 1e\+300 is no limit that can be kept", "--max-hours takes a number above 0"),
    Row("minutes: not a number", nothing, ("up", "local", "--timeout", "nan"), "--timeout nan is no limit .*",
        "--timeout takes a number above 0"),
    Row("a lease for ever", nothing, ("lease", "lab", "--extend", "9" * 400 + "h"), "'9+h' is not a length of time",
        "write it like 90s, 30min, 2h or 1h30m"),
    *(Row(f"port {port}", nothing, ("forward", port), f"'{port}' is no port", "write it like: gpuops forward 6006")
      for port in ("0", "65536", "²", "http", "9" * 400)),
    Row("a forward of too much", nothing, ("forward", "lab", "80", "90"), "'90' is more than gpuops forward takes",
        "write it like: gpuops forward lab 6006"),
    # Names.
    Row("a cluster in capitals", known, ("down", "Lab"), "there is no live cluster named Lab", "live clusters: lab"),
    Row("a new cluster in capitals", nothing, ("up", "local", "--name", "Lab"), "'Lab' cannot be a cluster's name",
        "use a small letter, .*"),
    Row("a cluster's name in another alphabet", nothing, ("up", "local", "--name", "läb"),
        "'läb' cannot be a cluster's name", "use a small letter, .*"),
    Row("a name that another folder's cluster has", known, ("up", "local", "--name", "lab"),
        "a cluster named lab exists already", "choose another --name, or end it: gpuops down lab"),
    Row("a run elsewhere", known, ("logs", "../../etc"), r"there is no run named \.\./\.\./etc",
        "`gpuops runs` lists them"),
    Row("a rank outside", known, ("logs", "a-1", "--rank", "9"), "a-1 has ranks 0 to 1, not rank 9",
        "gpuops logs a-1 shows all of them"),
    Row("a node outside", known, ("logs", "a-1", "--node", "-1"), "a-1 has nodes 0 to 1, not node -1",
        "gpuops logs a-1 shows all of them"),
    Row("fewer lines than none", known, ("logs", "a-1", "--tail", "-1"), "--tail is at least 1 line, not -1",
        "gpuops logs --tail 50"),
    Row("to pull what was not started", unstarted, ("pull",), "a-1 was not started: no Python",
        "`gpuops runs` lists where each run's results are"),
    Row("to resume what left nothing", known, (*TRAIN, "--resume", "a-1"), "a-1 left no snapshots to resume from",
        "look into {folder}/runs/a-1"),
    # The hosts of `up ssh`.
    Row("no host", nothing, ("up", "ssh"), "no host was named", "add --host user@address, once for each host"),
    *(Row(f"host {host!r}", nothing, ("up", "ssh", f"--host={host}"), ".* is not a host",
          r"write it as user@host, user@host:port, or a name of ~/\.ssh/config")
      for host in ("", "user@", "a b", "[::1", "ho\nst", "-oProxyCommand=id@x")),
    *(Row(f"host {host}", nothing, ("up", "ssh", f"--host={host}"), f"'{host}' does not end with a port",
          "ports are 1 to 65535") for host in ("user@host:port", "host:0", "host:99999")),
    Row("no file of hosts", nothing, ("up", "ssh", "--hosts", "nope"),
        "--hosts nope cannot be read: No such file or directory", "name a text file with one of them a line"),
    Row("a folder of hosts", nothing, ("up", "ssh", "--hosts", "."), r"--hosts \. cannot be read: Is a directory",
        "name a text file with one of them a line"),
    Row("hosts that are no text", file("h", b"\0\xff"), ("up", "ssh", "--hosts", "h"),
        "--hosts h cannot be read: it is no text", "name a text file with one of them a line"),
    Row("hosts that are comments", file("h", "# none\n\n"), ("up", "ssh", "--hosts", "h"), "--hosts h names nothing",
        "write one of them a line"),
    Row("hosts that are a table", file("h", "a,b,c\n"), ("up", "ssh", "--hosts", "h"), "'a,b,c' is not a host",
        "write it as .*"),
    Row("a host twice", nothing, ("up", "ssh", "--host", "a", "--host", "b", "--nodes", "0"), "--nodes 0 is too few",
        "--nodes takes a number from 1"),
    Row("no identity", nothing, ("up", "ssh", "--host", "x", "--identity", "nope"),
        "--identity nope: there is no such file", "name the private key"),
    Row("a folder as identity", nothing, ("up", "ssh", "--host", "x", "--identity", "."),
        r"--identity \.: it is a folder", "name the private key"),
    Row("the public key as identity", file("k.pub"), ("up", "ssh", "--host", "x", "--identity", "k.pub"),
        r"--identity k\.pub is the public half of a key", "name the private one: k"),
    Row("a GPU to rent from a host", nothing, ("up", "ssh", "--host", "x", "--gpu-type", "h100", "--region", "i"),
        "--gpu-type and --region say which machine to rent, and these hosts are yours",
        "leave out --gpu-type and --region"),
    *(Row(f"a book of hosts that holds {book[:12]}", file("~ssh/hosts.json", book), ("reap",),
          r"something may still be there: ssh could not be asked: {home}/ssh/hosts\.json cannot be read: .*",
          "restore it: .*; then: gpuops reap", 5)
      for book in ("", "not json", "[]", '{"a": 1}', '{"a": {"target": {"host": []}}}', "[" * 100_000)),
    # Plug-ins.
    Row("a plug-in that does not import", plugin("import no_such_module"), ("up", "moon"),
        "the provisioner 'moon' cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'",
        "reinstall the package that brings 'moon', or remove it"),
    Row("a plug-in with a slip", plugin("class Moon:\n  def __init__(self, context): 1 / 0\n"), ("up", "moon"),
        "the provisioner 'moon' cannot be loaded: ZeroDivisionError: division by zero",
        "reinstall the package that brings 'moon', or remove it"),
    Row("a plug-in that exits", plugin("raise SystemExit(3)"), ("up", "moon"),
        "the provisioner 'moon' cannot be loaded: SystemExit: 3", "reinstall the package .*"),
    Row("a plug-in with an old contract", plugin(OLD), ("up", "moon"),
        "the provisioner 'moon' lacks .*, and does not fit this gpuops .*", "upgrade gpuops and the package .*"),
    Row("reap with a plug-in that does not import", plugin("import no_such_module"), ("reap",),
        "something may still be there: moon could not be asked: .*",
        "reinstall the package .*; then: gpuops reap", 5),
    # The ledger.
    *(Row(f"{words[0]} with a ledger that cannot be opened", folder("~ledger.db"), words, UNABLE, CHECK)
      for words in (("up", "local"), ("runs",), ("down",), ("status",))),
    *(Row(f"{column} = {value!r}", damaged(column, value), words, DAMAGED, ASIDE)
      for column, value, words in (
          ("clusters.request", "[1", ("status",)), ("clusters.request", "[]", ("down", "lab")),
          ("clusters.created", "soon", ("status",)), ("clusters.hard_end", float("inf"), ("lease", "lab")),
          ("clusters.name", b"\0", ("down", "--all")), ("resources.resource", "{}", ("status",)),
          ("runs.facts", "null", ("runs",)), ("runs.state", "paused", ("runs",)),
          ("clusters.state", "paused", ("status",)), ("runs.verdict", '{"outcome": "won", "say": ""}', ("runs",)),
          ("runs.started", b"x", ("logs", "a-1")),
          ("clusters.keeper_pid", 1 << 40, ("lease", "lab")))),
    Row("a run's request that is none", damaged("runs.request", '{"kine": 1}'), ("logs", "a-1"),
        "what the ledger says of a-1 cannot be read", "its results so far are in {folder}/runs/a-1", 4),
    # What excludes each other.
    Row("to end and to keep", nothing, ("reap", "--yes", "--adopt"), "--yes, --adopt and --forget exclude each other",
        "end, take back or forget: say one of them"),
    Row("to forget whom nobody knows", nothing, ("reap", "--forget", "me@there"),
        "nothing of ours is known to be on me@there", "`gpuops reap` names the hosts that do not answer"),
]  # fmt: skip


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file below, by its path; links and pipes as what they are."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found[str(path)] = path.read_bytes()
        elif not path.is_dir():
            found[str(path)] = b"no file"
    return found


def filled(pattern: str, desk: Desk) -> str:
    return pattern.replace("{folder}", re.escape(str(desk.folder))).replace("{home}", re.escape(str(desk.home)))


@pytest.fixture
def prepared(desk: Desk, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[tuple[Desk, Row]]:
    row: Row = request.param
    row.world(desk, monkeypatch)
    if os.environ.get("GPUOPS_HOME") == "{folder}":
        monkeypatch.setenv("GPUOPS_HOME", str(desk.folder))
    yield desk, row
    monkeypatch.chdir("/")


@pytest.mark.parametrize("prepared", ROWS, ids=lambda row: row.what, indirect=True)
def test_one_sentence_one_thing_to_do_and_nothing_lost(prepared: tuple[Desk, Row]) -> None:
    desk, row = prepared
    before = bytes_of(desk.folder)
    said = desk.type(*row.words)
    lines = said.err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert re.fullmatch(filled(f"error: {row.say}", desk), errors[0]), said
    assert re.fullmatch(filled(f"hint: {row.hint}", desk), lines[-1]), said
    assert (said.code, said.out, len(errors)) == (row.code, "", 1)
    assert lines[-2:] == [errors[0], lines[-1]]
    assert "Traceback" not in said.err
    here = bytes_of(desk.folder)
    assert {path: here.get(path) for path in before} == before
    assert not list(desk.home.glob("bug-*"))
    assert not (desk.home / "local").exists()


@pytest.mark.parametrize(
    "prepared", [row for row in ROWS if row.words[0] != "forward"], ids=lambda row: row.what, indirect=True
)
def test_with_json_it_is_an_object_as_well(prepared: tuple[Desk, Row]) -> None:
    desk, row = prepared
    said = desk.type(row.words[0], "--json", *row.words[1:])
    document = json.loads(said.out)
    assert document.keys() == {"schema", "kind", "say", "hint", "exit_code"}
    assert (document["schema"], document["kind"], document["exit_code"]) == (1, "error", row.code)


def test_a_virtual_environment_named_dot_env_is_no_settings_file(desk: Desk) -> None:
    """`python -m venv .env` is common: such a folder is neither read nor sent."""
    desk.write(".env/pyvenv.cfg", "home = /usr/bin\n")
    desk.write(".env/bin/activate", "")
    said = desk.type(*DRY)
    assert (said.code, said.err) == (0, "")
    assert "would send: 0 files" in said.out


def test_a_clock_that_was_set_back_makes_nothing_negative(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    known(desk, monkeypatch)
    for words in (("status",), ("runs",), ("lease", "lab")):
        said = desk.type(*words)
        times = re.sub(r" -(?= |$)|a-1|--", "", said.out, flags=re.M)
        assert (said.code, "-" in times) == (0, False), said


def test_names_that_take_thought_are_sent_as_they_are(desk: Desk) -> None:
    names = ["mein bild.py", "übung.py", "$(id).py", "-rf.py", "a\nb.py", "'\".py"]
    for name in names:
        desk.write(name, "")
    document = json.loads(desk.type("push", "--dry-run", "--json").out)
    assert sorted(document["paths"]) == sorted(names)
    assert desk.type("train", "single", "mein bild.py", "--dry-run", "--", "a\nb", "'", '"', "").code == 0


def test_with_nobody_to_read_a_folder_it_is_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.type(*DRY)  # what it imports may lie where only root can read
    with open_folder() as place:
        closed = place / "closed"
        closed.mkdir()
        home = place / "home"
        home.mkdir()
        give_away(home)
        monkeypatch.setenv("GPUOPS_HOME", str(home))
        monkeypatch.chdir(closed)
        closed.chmod(0o000)
        with without_root():
            said = desk.type(*DRY)
        closed.chmod(0o755)
        monkeypatch.chdir("/")
    assert said.code == 2, said
    assert said.err == f"error: {closed} cannot be read: Permission denied\nhint: list it in .gpuopsignore\n"


def test_a_ledger_that_may_not_be_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.type("runs")
    with open_folder() as place:
        home = place / "home"
        home.mkdir()
        (home / "owner").write_text("0a1b2c3d\n")
        (home / "ledger.db").touch(mode=0o600)
        give_away(home)
        monkeypatch.setenv("GPUOPS_HOME", str(home))
        with without_root():
            said = desk.type("runs")
    assert said.code == 2, said
    assert f"error: the ledger {home}/ledger.db cannot be used: " in said.err
    assert said.err.endswith(f"hint: {CHECK}\n")


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "TOKEN"])
def test_a_key_in_env_is_said_to_be_recorded(desk: Desk, name: str) -> None:
    key = (
        "5f3a9c0e1b7d2846" * 2 + "9a8b7c6d" if name == "WANDB_API_KEY" else "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vX7zA9cE1gH3j"
    )
    said = desk.type("run", "--dry-run", "--env", f"{name}={key}", "--", "true")
    assert said.code == 0
    assert re.fullmatch(rf"note: {name} looks like a .*, and --env is recorded with the run: --secret {name} is not\n",
                        said.err)  # fmt: skip
    assert key not in said.err


def test_what_pull_edits_put_beside_and_gpuops_own_folder_stay_here(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's version of a file is not a file of the project; a file that is merely named so is one."""
    monkeypatch.setenv("GPUOPS_HOME", str(desk.folder / "state"))
    for name in ("a.py", "a.py.node0", "a.py.node1-2", "alone.node0"):
        desk.write(name, name)
    said = desk.type("push", "--dry-run", "--json")
    document = json.loads(said.out)
    assert document["paths"] == ["a.py", "alone.node0"]
    assert document["held"] == [{"path": "a.py.node0", "why": "a node's version of a.py"},
                                {"path": "a.py.node1-2", "why": "a node's version of a.py"}]  # fmt: skip
    again = json.loads(desk.type("push", "--dry-run", "--json", "--send-anyway", "a.py.node0").out)
    assert again["paths"] == ["a.py", "a.py.node0", "alone.node0"]
