"""What differs between Linux, macOS and Windows on the computer that gpuops is typed on, decided in one place.

Tables and functions of the system's name; whoever acts takes a `System` as a parameter, so that all three can be tried
on any. `HERE` is this computer. Nodes are another matter: they are Linux, local ones macOS as well.
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
"""No file, for `ssh`: on Windows, too, where it is the one path that OpenSSH translates."""
SOCKET_SUFFIX_BYTES = 18
"""What `ssh` appends to the path of a control socket while it makes it, in bytes."""
SOCKET_PATH_BYTES = {"linux": 108, "macos": 104}
"""Bytes that a socket's path may have, its end included (`sun_path`)."""

# The numbers of `subprocess.CREATE_…`, which Python has on Windows only.
NEW_PROCESS_GROUP, NO_WINDOW, BREAKAWAY_FROM_JOB = 0x200, 0x08000000, 0x01000000
STDOUT, STDERR, OBEYS = -11, -12, 0x4
"""STD_OUTPUT_HANDLE, STD_ERROR_HANDLE, ENABLE_VIRTUAL_TERMINAL_PROCESSING."""

FORBIDDEN = re.compile(r'[<>:"|?*\\\x00-\x1f]|[ .]+$')
"""What no file of Windows may have in its name, or at its end. (A colon would even hide the bytes in another file.)"""
RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])(?=$|[. ])", re.IGNORECASE)
"""Names of devices, whatever their ending: `aux.txt` is one."""
UNDECODED = re.compile("[\udc80-\udcff]")
"""Bytes of a Linux file name that are no UTF-8, as Python writes them."""
PATH_BEGINS = re.compile(r"\s+(?=[A-Za-z]:[\\/]|[~/]|__PROGRAMDATA__)")
"""Where the next of several Windows paths begins: `ssh -G` prints them without quotes."""

REPLACE_TIMEOUT_S = 2.0
"""How long another program may hold a file that is about to be replaced: a scanner of viruses, an indexer, a reader."""


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
        """The signal of a terminal that goes. On Windows that of a window that is closed, and of Ctrl-Break."""
        return "SIGBREAK" if self.windows else "SIGHUP"

    @property
    def apart(self) -> Popen:
        """For a child that shall not get the terminal's Ctrl-C: that is ours to handle."""
        return {"creationflags": NEW_PROCESS_GROUP} if self.windows else {"start_new_session": True}

    @property
    def background(self) -> Sequence[Popen]:
        """For a child that stays when the terminal goes; each is to be tried where the one before is not permitted.

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
        """How a person sets a variable in the shell."""
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
        """Where OpenSSH keeps what holds for everybody on this computer."""
        return Path(env.get("PROGRAMDATA", "C:/ProgramData"), "ssh") if self.windows else Path("/etc/ssh")

    def shell_line(self, argv: Sequence[str]) -> str:
        """`argv` as a line for this computer's shell: `ssh` starts a ProxyCommand by it."""
        import shlex
        import subprocess

        return subprocess.list2cmdline(argv) if self.windows else shlex.join(argv)

    def protection(self, folder: Path, env: Mapping[str, str]) -> list[str]:
        """The program that takes a new folder away from everybody but its owner, and so what comes to lie in it.

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
        """What of a file's permissions is sent. Windows knows of no executables, so that all are; as Docker has it."""
        return 0o755 if self.windows else bits & 0o777

    def link(self, target: str) -> str:
        """Where a symbolic link leads, as a node understands it."""
        return target.removeprefix("\\\\?\\").replace("\\", "/") if self.windows else target

    def key(self, path: str) -> str:
        """Equal for two paths that this computer takes for the same file."""
        if self.kind == "linux":
            return path
        import unicodedata

        return unicodedata.normalize("NFC", path).casefold()

    def stored(self, path: str) -> str:
        """The name under which a node's file can lie here: the same, but for what this computer could not write."""
        if self.kind == "linux":
            return path
        parts = UNDECODED.sub("_", path).split("/")
        return "/".join(map(_on_windows, parts) if self.windows else parts)

    def names(self, paths: Iterable[str]) -> dict[str, str]:
        """As `stored`, for files that come to lie beside each other: no two have one name."""
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
    """`os.replace`, patiently: Windows refuses while any other program has the target open."""
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
    """Have Windows start no `git.exe` that lies in a project: it looks into the current folder first, unless this
    variable is there (Microsoft: NeedCurrentDirectoryForExePath; Python's `which` obeys it from 3.12 on)."""
    if system.windows:
        environ.setdefault("NoDefaultCurrentDirectoryInExePath", "1")


def obey_escapes(system: System = HERE, kernel: Any = None) -> None:
    """Have a console of Windows draw by escape sequences, which it prints unless it is told to; `kernel`: its API."""
    if not system.windows:
        return
    import ctypes

    kernel = kernel or getattr(ctypes, "windll").kernel32  # noqa: B009 (types know it on Windows only)
    for output in (STDOUT, STDERR):
        handle, mode = kernel.GetStdHandle(output), ctypes.c_ulong()
        if kernel.GetConsoleMode(handle, ctypes.byref(mode)):  # else it is a file or a pipe
            kernel.SetConsoleMode(handle, mode.value | OBEYS)
