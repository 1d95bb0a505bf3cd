"""What differs between Linux, macOS and Windows on the computer that runs the client, decided in one place.

Functions that depend on it take a `System` as a parameter, so that tests on one system cover all three. `HERE` is this
computer. Nodes always run Linux, local ones macOS as well.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Popen = Mapping[str, Any]
"""Arguments of `subprocess.Popen`."""

NULL_FILE = "/dev/null"
"""The path of no file for `ssh`, also on Windows, where OpenSSH translates this path."""
SOCKET_SUFFIX_BYTES = 18
"""What `ssh` appends to the path of a control socket while it creates it."""
SOCKET_PATH_BYTES = {"linux": 108, "macos": 104}
"""Size of a socket's path with its final zero (`sun_path`)."""

# The numbers of `subprocess.CREATE_…`, which Python has on Windows only.
NEW_PROCESS_GROUP, NO_WINDOW, BREAKAWAY_FROM_JOB = 0x200, 0x08000000, 0x01000000
STDOUT, STDERR, OBEYS = -11, -12, 0x4
"""STD_OUTPUT_HANDLE, STD_ERROR_HANDLE, ENABLE_VIRTUAL_TERMINAL_PROCESSING."""

FORBIDDEN = re.compile(r'[<>:"|?*\\\x00-\x1f]|[ .]+$')
"""What no file name may contain, or end with, on Windows. (A colon would hide the bytes in another stream.)"""
RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])(?=$|[. ])", re.IGNORECASE)
"""Names of devices on Windows, with any ending: `aux.txt` is one."""
UNDECODED = re.compile("[\udc80-\udcff]")
"""Bytes of a Linux file name that are not UTF-8, as Python represents them."""
PATH_BEGINS = re.compile(r"\s+(?=[A-Za-z]:[\\/]|[~/]|__PROGRAMDATA__)")
"""Before each further path in a list of Windows paths, which `ssh -G` prints without quotes."""

REPLACE_TIMEOUT_S = 2.0
"""How long another program (virus scanner, indexer, reader) may keep a file open that is to be replaced."""


@dataclass(frozen=True)
class System:
    kind: str
    """`linux`, `macos` or `windows`."""

    @property
    def windows(self) -> bool:
        return self.kind == "windows"

    # Processes and signals.

    @property
    def local_nodes(self) -> bool:
        """Whether the agent runs here: it lives on sessions, signals and Unix sockets."""
        return not self.windows

    @property
    def hang_up(self) -> str:
        """The signal of a closed terminal. On Windows that of a closed window, and of Ctrl-Break."""
        return "SIGBREAK" if self.windows else "SIGHUP"

    @property
    def apart(self) -> Popen:
        """For a child that must not get the terminal's Ctrl-C, which gpuops handles."""
        return {"creationflags": NEW_PROCESS_GROUP} if self.windows else {"start_new_session": True}

    @property
    def background(self) -> Sequence[Popen]:
        """For a child that outlives the terminal: alternatives, each to be tried where the one before is forbidden.

        Not DETACHED_PROCESS: without any console, each program that the child starts would open a window. What
        runs in a job (a terminal in an editor, a CI step) ends with it, unless it may break away.
        """
        if not self.windows:
            return ({"start_new_session": True},)
        flags = NEW_PROCESS_GROUP | NO_WINDOW
        return {"creationflags": flags | BREAKAWAY_FROM_JOB}, {"creationflags": flags}

    # Terminals and shells.

    def moves_cursor(self, env: Mapping[str, str]) -> bool:
        """Whether a terminal can draw over what it has shown. Windows' own ones can, and set no TERM."""
        return env.get("TERM", "xterm" if self.windows else "") not in ("", "dumb")

    def set_variable(self, name: str) -> str:
        """The command that sets a variable in the user's shell."""
        return f"$env:{name} = '…'" if self.windows else f"export {name}=…"

    # SSH.

    @property
    def install_ssh(self) -> str:
        if self.windows:
            return "add it: Settings, System, Optional features, OpenSSH Client"
        return "install OpenSSH's client"

    @property
    def shares_logins(self) -> bool:
        """Whether one login of `ssh` can carry several programs (ControlMaster)."""
        return self.kind in SOCKET_PATH_BYTES

    def fits_socket(self, path: str) -> bool:
        return len(os.fsencode(path)) + SOCKET_SUFFIX_BYTES <= SOCKET_PATH_BYTES.get(self.kind, 0)

    def config_path(self, path: str) -> str:
        """A path as ssh_config has it: there a backslash is an escape on every system."""
        return path.replace("\\", "/") if self.windows else path

    def paths(self, text: str) -> list[str]:
        """Several paths of one line of `ssh -G`."""
        import shlex

        return [one for one in PATH_BEGINS.split(text.strip()) if one] if self.windows else shlex.split(text)

    def ssh_folder(self, env: Mapping[str, str]) -> Path:
        """The folder of OpenSSH's settings for all users."""
        return Path(env.get("PROGRAMDATA", "C:/ProgramData"), "ssh") if self.windows else Path("/etc/ssh")

    def shell_line(self, argv: Sequence[str]) -> str:
        """`argv` as a line for this computer's shell: `ssh` starts a ProxyCommand by it."""
        import shlex
        import subprocess

        return subprocess.list2cmdline(argv) if self.windows else shlex.join(argv)

    def protection(self, folder: Path, env: Mapping[str, str]) -> list[str]:
        """The program that closes a new folder, and what will lie in it, to all users but its owner.

        Empty where mkdir's mode does it. On Windows a folder on another disk lets every user write, and OpenSSH takes
        no file from it; nor from one that mkdir made with 0700, which grants something to OWNER RIGHTS (Python issue
        128038).
        """
        if not self.windows:
            return []
        user = "\\".join(filter(None, (env.get("USERDOMAIN"), env.get("USERNAME"))))
        system = "*S-1-5-18"  # by number: its name is another in every language
        return ["icacls", str(folder), "/inheritance:r", "/grant:r", f"{user}:(OI)(CI)F", f"{system}:(OI)(CI)F"]

    # Files.

    def open_to_others(self, folder: Path) -> Path | None:
        """The folder, or the first one above it, by which another user may change what lies in it; None: nobody can.

        The folder itself is to be ours (or root's), and written by nobody else. Above it a sticky bit is enough (/tmp),
        and so is a group that has its owner's name and no other member, as Debian and Fedora give to every user, or
        root's. Whose a folder above is does not count: in a container HOME often lies in one of the host's user.
        Windows has access lists in place of all this, and a profile is closed to other users there. Raises OSError.
        """
        if self.windows:
            return None
        own = folder.stat()
        if own.st_uid not in (os.geteuid(), 0) or own.st_mode & 0o022:
            return folder
        above = dict.fromkeys([*folder.parents, *folder.resolve().parents])
        return next((one for one in above if _is_open(one.stat())), None)

    def mode(self, bits: int) -> int:
        """The permissions of a file that are sent. Windows has no executable bit: all files get one, as in Docker."""
        return 0o755 if self.windows else bits & 0o777

    def link(self, target: str) -> str:
        """A symbolic link's target in a node's notation."""
        return target.removeprefix("\\\\?\\").replace("\\", "/") if self.windows else target

    def key(self, path: str) -> str:
        """A key that is equal for paths that this computer takes for the same file."""
        if self.kind == "linux":
            return path
        import unicodedata

        return unicodedata.normalize("NFC", path).casefold()

    def stored(self, path: str) -> str:
        """The path under which a node's file can lie here: the same, with what this disk cannot write replaced."""
        if self.kind == "linux":
            return path
        parts = UNDECODED.sub("_", path).split("/")
        return "/".join(map(_on_windows, parts) if self.windows else parts)

    def names(self, paths: Iterable[str]) -> dict[str, str]:
        """As `stored`, for files of one folder: no two get the same name."""
        found: dict[str, str] = {}
        taken: set[str] = set()
        for path in sorted(paths):
            name = self.stored(path)
            while self.key(name) in taken:
                name += ".new"
            taken.add(self.key(name))
            found[path] = name
        return found


def _is_open(found: os.stat_result) -> bool:
    """Whether others than its owner and root may replace what lies in a folder of this state."""
    if found.st_mode & stat.S_ISVTX:
        return False
    by_group = found.st_mode & 0o020 and not _is_of_one(found.st_gid, found.st_uid)
    return bool(found.st_mode & 0o002 or by_group)


def _is_of_one(group: int, user: int) -> bool:
    import grp
    import pwd

    try:
        named, name = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:  # neither need have a name in a container
        return group in (0, user)
    return group == 0 or (named.gr_name == name and set(named.gr_mem) <= {name})


def _on_windows(part: str) -> str:
    """One name of a path with what Windows cannot write replaced."""
    name = FORBIDDEN.sub(lambda found: "_" * len(found[0]), part)
    return f"_{name}" if RESERVED.match(name) else name


def named(platform: str) -> System:
    """The system that `sys.platform` names. Every other Unix counts as a Linux without /proc."""
    return System({"win32": "windows", "darwin": "macos"}.get(platform, "linux"))


HERE = named(sys.platform)


def replace(
    source: Path | str,
    target: Path | str,
    system: System = HERE,
    rename: Callable[[Path | str, Path | str], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """`os.replace`, retried: Windows refuses while another program has the target open."""
    waited_s = 0.0
    while True:
        try:
            return (rename or os.replace)(source, target)
        except PermissionError:
            if not system.windows or waited_s >= REPLACE_TIMEOUT_S:
                raise
        sleep(0.1)
        waited_s += 0.1


def pass_over_current_folder(environ: MutableMapping[str, str], system: System = HERE) -> None:
    """Have Windows start no `git.exe` that lies in a project: it searches the current folder first, unless this
    variable is set (Microsoft: NeedCurrentDirectoryForExePath; Python's `which` obeys it from 3.12 on)."""
    if system.windows:
        environ.setdefault("NoDefaultCurrentDirectoryInExePath", "1")


def obey_escapes(system: System = HERE, kernel: Any = None) -> None:
    """Make a Windows console interpret escape sequences instead of printing them. `kernel`: its API."""
    if not system.windows:
        return
    import ctypes

    kernel = kernel or getattr(ctypes, "windll").kernel32  # noqa: B009 (types know it on Windows only)
    for output in (STDOUT, STDERR):
        handle, mode = kernel.GetStdHandle(output), ctypes.c_ulong()
        if kernel.GetConsoleMode(handle, ctypes.byref(mode)):  # else it is a file or a pipe
            kernel.SetConsoleMode(handle, mode.value | OBEYS)
