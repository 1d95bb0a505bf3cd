"""The three systems that gpuops may be typed on, each tried on this one: what is written, started and named there."""

from __future__ import annotations

import errno
import io
from collections.abc import Sequence
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.agent.wire_format import members
from gpuops.commands.ssh import _include_pattern
from gpuops.core.errors import LocalDisk, NodeError, UsageError
from gpuops.core.files import private_folder
from gpuops.core.models import Request
from gpuops.core.platform import HERE, System, named, obey_escapes, pass_over_current_folder, replace
from gpuops.core.processes import start_background
from gpuops.core.provider import Context
from gpuops.core.safe_folder import SafeFolder
from gpuops.core.safe_paths import is_inside
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_record import Arrival
from gpuops.sync.project_files import read_entry
from gpuops.sync.restore_snapshots import _send_files, select_places
from gpuops.sync.run_folder import RunHome
from gpuops.transport.ssh import Target, config_lines, proxy
from gpuops.transport.ssh.host_resolution import jump_line
from gpuops.transport.ssh.openssh import ssh_program
from provisioners.local import LocalProvisioner
from tests.conftest import TESTS
from tests.platforms import AGENT, LEFT_OUT, why_not

LINUX, MACOS, WINDOWS = (System(kind) for kind in ("linux", "macos", "windows"))
KINDS = pytest.mark.parametrize("system", [LINUX, MACOS, WINDOWS], ids=lambda system: system.kind)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP7o4sTEDmj9wsA+cpZyP6ntZAxvDJapXatD7EhwBV1R"
HOMES: dict[System, PurePath] = {
    LINUX: PurePosixPath("/home/jane"),
    MACOS: PurePosixPath("/Users/jane"),
    WINDOWS: PureWindowsPath("C:\\Users\\Jane Doe"),
}


def test_this_one() -> None:
    assert [named(name).kind for name in ("linux", "darwin", "win32", "freebsd14")] == [
        "linux",
        "macos",
        "windows",
        "linux",
    ]
    assert HERE.kind in ("linux", "macos", "windows")


# --- SSH ----------------------------------------------------------------------------------------


def golden(system: System) -> str:
    return (TESTS / "golden" / f"ssh_config.{system.kind}").read_text(encoding="utf-8")


@KINDS
def test_what_is_written_for_ssh(system: System) -> None:
    home = HOMES[system]
    folder = home / ".gpuops" / "ssh"
    key = str(home / ".ssh" / "id_ed25519")
    target = Target("10.0.0.5", 2222, "me", (key,), True, host_keys=(KEY,))
    lines = config_lines.host_lines(
        "gpuops-lab-0", target, folder / "lab.known_hosts", folder / "cm" / "x-0", 600, system=system
    )
    assert "\n".join([*lines, ""]) == golden(system)


def test_a_key_cannot_break_out_of_its_line_anywhere() -> None:
    assert config_lines.path_value("C:\\keys\\id", WINDOWS) == '"C:/keys/id"'
    for path, system in (
        ("/a\\b", LINUX),
        ("/a\\b", MACOS),
        ('C:\\"', WINDOWS),
        ("C:\\${x}", WINDOWS),
        ("a\nb", WINDOWS),
    ):
        with pytest.raises(UsageError):
            config_lines.path_value(path, system)


def test_where_a_login_can_be_shared() -> None:
    assert [system.shares_logins for system in (LINUX, MACOS, WINDOWS)] == [True, True, False]
    longest = {
        system: max(length for length in range(1, 200) if system.fits_socket("/" * length)) for system in (LINUX, MACOS)
    }
    assert longest == {LINUX: 108 - 18, MACOS: 104 - 18}
    home = HOMES[MACOS] / ".gpuops" / "ssh"
    assert MACOS.fits_socket(str(config_lines.control_path(Path(home), Target("10.0.0.5"))))


PRIVATE = [
    "icacls", "C:\\Users\\Jane Doe\\.gpuops\\ssh", "/inheritance:r", "/grant:r",
    "OFFICE\\jane:(OI)(CI)F", "*S-1-5-18:(OI)(CI)F",
]  # fmt: skip


def test_how_a_folder_is_kept_from_others(tmp_path: Path) -> None:
    env = {"USERDOMAIN": "OFFICE", "USERNAME": "jane"}
    folder: Any = HOMES[WINDOWS] / ".gpuops" / "ssh"
    assert WINDOWS.protection(folder, env) == PRIVATE
    assert LINUX.protection(folder, env) == MACOS.protection(folder, env) == []

    ran: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> bool:
        ran.append(argv)
        return True

    for _ in range(2):
        private_folder(tmp_path / "ssh", WINDOWS, run)
    assert [argv[:3] for argv in ran] == [["icacls", str(tmp_path / "ssh"), "/inheritance:r"]], "once, when it is made"
    private_folder(tmp_path / "posix", MACOS, run)
    assert (tmp_path / "posix").stat().st_mode & 0o777 == 0o700
    assert len(ran) == 1
    with pytest.raises(LocalDisk, match="cannot be kept from other users: icacls failed"):
        private_folder(tmp_path / "open", WINDOWS, lambda _: False)
    assert not (tmp_path / "open").exists(), "or the next command would take it for a private one"


def test_what_ssh_says_of_files() -> None:
    said = "C:\\Users\\Jane Doe/.ssh/known_hosts C:\\Users\\Jane Doe/.ssh/known_hosts2"
    assert WINDOWS.paths(said) == ["C:\\Users\\Jane Doe/.ssh/known_hosts", "C:\\Users\\Jane Doe/.ssh/known_hosts2"]
    assert WINDOWS.paths("~/.ssh/a __PROGRAMDATA__\\ssh/b") == ["~/.ssh/a", "__PROGRAMDATA__\\ssh/b"]
    assert LINUX.paths("~/.ssh/a '/b c'") == MACOS.paths("~/.ssh/a '/b c'") == ["~/.ssh/a", "/b c"]
    assert WINDOWS.ssh_folder({"PROGRAMDATA": "D:/Data"}).as_posix() == "D:/Data/ssh"
    assert MACOS.ssh_folder({}).as_posix() == "/etc/ssh"


def test_jumps() -> None:
    line = (
        "ssh -o BatchMode=yes -o 'ProxyCommand=ssh -o BatchMode=yes -W '\"'\"'[%%h]:%%p'\"'\"' -- a' -W '[%h]:%p' -- b"
    )
    assert jump_line("a,b", system=LINUX) == jump_line("a,b", system=MACOS) == line
    assert jump_line("a,b", system=WINDOWS) == (
        'ssh -o BatchMode=yes -o "ProxyCommand=ssh -o BatchMode=yes -W [%%h]:%%p -- a" -W [%h]:%p -- b'
    )


def test_a_proxy_cannot_be_asked_for_a_key_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "HERE", WINDOWS)
    with pytest.raises(NodeError, match="on Windows the key of inner cannot be asked for through a proxy") as refused:
        proxy.dial(Target("inner", proxy="ssh -W [%h]:%p outer"), 1.0)
    assert "`ssh inner`" in refused.value.hint


def test_what_people_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Any = HOMES[WINDOWS] / ".gpuops" / "ssh"
    assert _include_pattern(folder, WINDOWS) == '"C:/Users/Jane Doe/.gpuops/ssh/*.conf"'
    folder = HOMES[LINUX] / ".gpuops" / "ssh"
    assert _include_pattern(folder, LINUX) == "/home/jane/.gpuops/ssh/*.conf"
    assert [system.set_variable("TOKEN") for system in (MACOS, WINDOWS)] == ["export TOKEN=…", "$env:TOKEN = '…'"]
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError) as missing:
        ssh_program(WINDOWS)
    assert "Optional features" in missing.value.hint


# --- processes, signals, terminals --------------------------------------------------------------


def test_signals_by_name() -> None:
    assert [system.hang_up for system in (LINUX, MACOS, WINDOWS)] == ["SIGHUP", "SIGHUP", "SIGBREAK"]


def test_what_stays_when_the_terminal_goes() -> None:
    """No console is shared with the terminal, no window opens, and a terminal's job is left where it permits that."""
    started: list[dict[str, Any]] = []

    def popen(_argv: list[str], **options: Any) -> None:
        started.append(options)
        if options.get("creationflags", 0) & 0x01000000:
            raise PermissionError(errno.EACCES, "Access is denied")

    for system in (LINUX, MACOS, WINDOWS):
        start_background(["guard"], system=system, popen=popen)
    assert started == [
        {"start_new_session": True},
        {"start_new_session": True},
        {"creationflags": 0x01000000 | 0x08000000 | 0x200},
        {"creationflags": 0x08000000 | 0x200},
    ]
    assert WINDOWS.apart == {"creationflags": 0x200}


def test_what_can_be_drawn_on() -> None:
    terms: list[dict[str, str]] = [{}, {"TERM": "xterm"}, {"TERM": "dumb"}]
    assert [LINUX.moves_cursor(env) for env in terms] == [False, True, False]
    assert [WINDOWS.moves_cursor(env) for env in terms] == [True, True, False]
    asked = []

    def get_mode(handle: int, mode: Any) -> int:
        mode._obj.value = 3
        return int(handle == -12)  # stdout is a file

    kernel = SimpleNamespace(
        GetStdHandle=lambda number: number, GetConsoleMode=get_mode, SetConsoleMode=lambda *what: asked.append(what)
    )
    for system in (LINUX, MACOS, WINDOWS):
        obey_escapes(system, kernel)
    assert asked == [(-12, 7)]


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("a/b.pt", "a/b.pt"),
        ("run:1.pt", "run_1.pt"),
        ("C:x", "C_x"),
        ('a<b>c"d|e?f*g', "a_b_c_d_e_f_g"),
        ("back\\slash", "back_slash"),
        ("tab\there", "tab_here"),
        ("dot. /x", "dot__/x"),
        (".hidden/...", ".hidden/___"),
        ("aux", "_aux"),
        ("AUX.txt", "_AUX.txt"), ("com1.tar.gz", "_com1.tar.gz"), ("lpt²", "_lpt²"),
        ("con /x", "con_/x"), ("auxiliary", "auxiliary"), ("com10", "com10"),
        ("console.log", "console.log"), ("nul_1", "nul_1"),
        ("caf\udce9.pt", "caf_.pt"),
    ],
)  # fmt: skip
def test_names_on_windows(path: str, there: str) -> None:
    assert WINDOWS.stored(path) == there
    assert WINDOWS.stored(there) == there
    assert LINUX.stored(path) == path
    assert MACOS.stored(path) == path.replace("\udce9", "_")


def test_no_two_files_get_one_name() -> None:
    paths = ["a:b", "a_b", "A?b", "x/Y", "X/y", "e\u0301", "é"]
    assert LINUX.names(paths) == {path: path for path in paths}
    assert MACOS.names(paths) == {
        "A?b": "A?b", "a:b": "a:b", "a_b": "a_b", "X/y": "X/y", "x/Y": "x/Y.new", "e\u0301": "e\u0301", "é": "é.new",
    }  # fmt: skip
    assert WINDOWS.names(paths) == {
        "A?b": "A_b", "a:b": "a_b.new", "a_b": "a_b.new.new",
        "X/y": "X/y", "x/Y": "x/Y.new", "e\u0301": "e\u0301", "é": "é.new",
    }  # fmt: skip


class Publishing:
    """`out/` as a system keeps it; files of one node arrive."""

    def __init__(self, folder: Path, system: System) -> None:
        self.folder = OutFolder(RunHome(folder / "run"), system)
        self.staging = folder

    def arrive(self, **files: str) -> list[str]:
        return self.all({name.replace("__", ":"): text for name, text in files.items()})

    def all(self, files: dict[str, str]) -> list[str]:
        arrivals = []
        for number, (path, text) in enumerate(files.items()):
            temp = f"temp-{number}"
            (self.staging / temp).write_text(text)
            arrivals.append(Arrival(0, path, (len(text), 1), text, temp))
        return self.folder.publish(arrivals, SafeFolder(self.staging))

    def lie(self) -> dict[str, str]:
        found = (path for path in self.folder.folder.path.rglob("*") if path.is_file() and path.name != ".gpuops.jsonl")
        return {path.relative_to(self.folder.folder.path).as_posix(): path.read_text() for path in found}


def test_files_that_come_home_keep_apart(tmp_path: Path) -> None:
    """On a disk that takes `Model.pt` and `model.pt` for one file, neither is lost, now nor at the next fetch."""
    for system in (MACOS, WINDOWS):
        home = Publishing(tmp_path / system.kind, system)
        home.staging.mkdir()
        said = home.all(
            {"Model.pt": "great", "model.pt": "small", "Data/x": "in a folder", "data": "a file", "DATA/x": "too"}
        )
        assert home.lie() == {
            "Model.pt": "great", "model.pt.new": "small",
            "DATA/x": "too", "Data/x.new": "in a folder", "node0/data": "a file",
        }  # fmt: skip
        assert said == [
            "out/Data/x.new is Data/x: to this computer that is the same name as DATA/x",
            "out/node0/data is data: a folder has that name here",
            "out/model.pt.new is model.pt: to this computer that is the same name as Model.pt",
        ]
        assert home.all({"model.pt": "small 2"})
        assert home.all({"Model.pt": "great 2"}) == []
        assert {name: text for name, text in home.lie().items() if "odel" in name} == {
            "Model.pt": "great 2", "model.pt.new": "small 2",
        }  # fmt: skip
    if HERE == LINUX:
        home = Publishing(tmp_path, LINUX)
        assert home.all({"Model.pt": "great", "model.pt": "small"}) == []
        assert home.lie() == {"Model.pt": "great", "model.pt": "small"}


def test_a_name_that_windows_cannot_have_is_said(tmp_path: Path) -> None:
    home = Publishing(tmp_path, WINDOWS)
    assert home.arrive(run__1="colon", run_1="other") == [
        "out/run_1 is run:1, a name that no file can have here",
        "out/run_1.new is run_1: to this computer that is the same name as run:1",
    ]
    assert home.lie() == {"run_1": "colon", "run_1.new": "other"}
    held = home.folder.memory().held
    assert {path: held[path][0].place for path in held} == {"run:1": "run_1", "run_1": "run_1.new"}


@pytest.mark.parametrize("path", ["..\\evil.pt", ".\\..\\..\\evil.pt", "C:\\evil.pt", "\\\\host\\share\\evil.pt"])
def test_a_backslash_leads_nowhere_on_windows(tmp_path: Path, path: str) -> None:
    home = Publishing(tmp_path, WINDOWS)
    home.all({path: "x"})
    assert is_inside(path)
    (place,) = home.lie()
    assert PureWindowsPath(place).name == place
    assert place not in ("", ".", "..")
    assert not (tmp_path / "evil.pt").exists()


def test_what_goes_back_to_nodes_has_their_names(tmp_path: Path) -> None:
    home = Publishing(tmp_path, WINDOWS)
    home.all({"run:1.pt": "colon", "back\\slash": "one name"})
    sent = io.BytesIO()
    channel = SimpleNamespace(
        stdin=SimpleNamespace(write=sent.write, close=lambda: None), wait=lambda *_: 0, close=lambda: None, errors=str,
        stdout=io.BytesIO(),
    )  # fmt: skip
    client: Any = SimpleNamespace(label="node0", bulk=lambda *_: channel)
    _send_files("project", "r-1", home.folder.folder, (client, select_places(home.folder.memory(), 0)))
    sent.seek(0)
    found = [(name, b"".join(content)) for name, _size, content in members(sent)]
    assert found == [("back\\slash", b"one name"), ("run:1.pt", b"colon")]


def test_what_is_said_of_a_file_that_goes(tmp_path: Path) -> None:
    """Bytes as they are, lines that end in CRLF too; every file can be executed where Windows cannot tell."""
    (tmp_path / "go.sh").write_bytes(b"#!/bin/sh\r\n")
    (tmp_path / "go.sh").chmod(0o640)
    modes = {
        system: found.mode for system in (LINUX, MACOS, WINDOWS) if (found := read_entry(tmp_path, "go.sh", system))
    }
    assert modes == {LINUX: 0o640, MACOS: 0o640, WINDOWS: 0o755}
    (tmp_path / "link").symlink_to("\\\\?\\C:\\data\\x")
    links = {system: found.link for system in (LINUX, WINDOWS) if (found := read_entry(tmp_path, "link", system))}
    assert links == {LINUX: "\\\\?\\C:\\data\\x", WINDOWS: "C:/data/x"}


def test_a_file_that_somebody_reads_is_replaced_a_little_later(tmp_path: Path) -> None:
    paused: list[float] = []

    def rename(source: Path | str, target: Path | str) -> None:
        if len(paused) < 3:
            raise PermissionError(errno.EACCES, "it is used by another process")
        Path(source).replace(target)

    (tmp_path / "new").write_text("new")
    replace(tmp_path / "new", tmp_path / "old", WINDOWS, rename, paused.append)
    assert (tmp_path / "old").read_text() == "new"
    for system, count in ((LINUX, 0), (MACOS, 0), (WINDOWS, 20)):
        paused.clear()
        with pytest.raises(PermissionError):
            replace("x", "y", system, lambda *_: rename_never(), paused.append)
        assert len(paused) == pytest.approx(count, abs=1)


def rename_never() -> None:
    raise PermissionError(errno.EACCES, "it is used by another process")


def test_paths_on_nodes_are_those_of_linux() -> None:
    """A script is named to torchrun as the node has it (cli/launch.py relies on this)."""
    assert str(PurePosixPath(PureWindowsPath("src\\models\\train.py"))) == "src/models/train.py"


def test_what_is_left_out_elsewhere_exists() -> None:
    root = TESTS.parent
    for where in {where for names in LEFT_OUT.values() for where in names}:
        file, _, name = where.partition("::")
        assert (root / file).exists(), where
        assert not name or f"def {name}(" in (root / file).read_text(encoding="utf-8"), where
    assert why_not("windows", "tests/unit/agent/test_log_tail.py::test_x") == AGENT
    assert why_not("windows", "tests/integration/sync/test_project_files.py")
    assert why_not("windows", "tests/integration/sync/test_projection.py::test_x") is None
    assert why_not("windows", "tests/unit/ledger/test_store.py::test_a_home_that_may_only_be_read[a ledger]")
    assert why_not("windows", "tests/unit/ledger/test_store.py") is why_not("linux", "tests/unit/agent/") is None


# --- local nodes, and everything at once --------------------------------------------------------


def test_where_this_machine_can_play_the_nodes(tmp_path: Path) -> None:
    def problems(system: System) -> list[tuple[str, str]]:
        provisioner = LocalProvisioner(Context("0a1b2c3d", tmp_path, {}), system)
        return [(one.say, one.hint) for one in provisioner.preflight(Request("local"))]

    assert problems(LINUX) == problems(MACOS) == []
    assert problems(WINDOWS) == [
        ("local nodes need Linux or macOS", "start gpuops in WSL, or use hosts by SSH: --on ssh --host user@address")
    ]


def test_programs_of_a_project_are_not_started_for_the_systems() -> None:
    there: dict[str, str] = {}
    pass_over_current_folder(there, System("linux"))
    assert there == {}
    pass_over_current_folder(there, System("windows"))
    assert there == {"NoDefaultCurrentDirectoryInExePath": "1"}
