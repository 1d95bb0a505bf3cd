"""A real sshd on a loopback port, for tests: own keys, own home, nobody else's files; ends with the test."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from gpuops.transport.ssh import Target
from tests.conftest import until
from tests.ports import free_port


def find_sshd() -> str | None:
    """sshd must be called by its absolute path: it starts itself again."""
    return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")


def can_serve() -> str:
    """Why no sshd can be started here; empty where one can."""
    if find_sshd() is None or shutil.which("ssh-keygen") is None:
        return "needs sshd (Debian: openssh-server)"
    return ""


def make_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> str:
    """A new private key; its public line."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "a test", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


class Sshd:
    """One server. `options` are lines of sshd_config; `bashrc` is what the user's start-up file does."""

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, object] | None = None,
        bashrc: str = "",
        port: int | None = None,
        mounts: str = "",
    ) -> None:
        """`mounts`: shell lines that change what the server, and who logs in, finds on this machine (needs root)."""
        self.mounts = mounts
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / ".bashrc").write_text(bashrc)
        self.identity = folder / "id"
        self.user = getpass.getuser()
        self.port = port or free_port()
        self.host_key = make_key(folder / "host_key")
        (folder / "authorized_keys").write_text(make_key(self.identity) + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        self._write(options or {})
        self.start()

    def _write(self, options: Mapping[str, object]) -> None:
        lines = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": self.folder / "host_key",
            "AuthorizedKeysFile": self.folder / "authorized_keys",
            "PidFile": self.folder / "pid",
            "SetEnv": f"HOME={self.home}",
            "UsePAM": "no",
            "StrictModes": "no",
            "UseDNS": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            **options,
        }
        text = "".join(f"{name} {value}\n" for name, value in lines.items())
        (self.folder / "sshd_config").write_text(text)

    def start(self) -> None:
        program = find_sshd()
        assert program, can_serve()
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it; a boot makes it anew
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._inside(), program, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._listens, f"sshd on port {self.port}: {self.log()}")

    def _inside(self) -> list[str]:
        if not self.mounts:
            return []
        script = f'set -e\nmount --make-rprivate /\ncd "$1"; shift\n{self.mounts}\nexec "$@"'
        return ["unshare", "-m", "sh", "-c", script, "sh", str(self.folder)]

    def _listens(self) -> bool:
        assert self._process
        if self._process.poll() is not None:
            raise AssertionError(f"sshd ended: {self.log()}")
        return "Server listening" in self.log()

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logins(self) -> int:
        """How often a key was accepted."""
        return self.log().count("Accepted publickey")

    def target(self, **changes: object) -> Target:
        fields: dict[str, object] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": self.user,
            "identities": (str(self.identity),),
            "identities_only": True,
            "host_keys": (self.host_key,),
        }
        return Target(**{**fields, **changes})  # type: ignore[arg-type]

    def _sessions(self) -> list[psutil.Process]:
        """The processes that serve connections, programs not among them."""
        assert self._process
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        found = []
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name().startswith("sshd"):
                    found.append(child)
        return found

    def cut(self) -> None:
        """End every connection without a word; the server goes on."""
        for process in self._sessions():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def pause(self) -> None:
        """From now on it hangs; TCP still lives."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process
        for process in [psutil.Process(self._process.pid), *self._sessions()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def stop(self) -> None:
        """End it, and all that was started through it; nobody answers any more when this returns."""
        if self._process is None:
            return
        tree: list[psutil.Process] = []
        self._process.send_signal(signal.SIGSTOP)  # so that it begins no other session
        with contextlib.suppress(psutil.NoSuchProcess):
            tree = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        self._process = None
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        until(lambda: not any(map(_lives, tree)), "its sessions have ended")


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def serving(options: Mapping[str, object] | None = None, bashrc: str = "", mounts: str = "") -> Iterator[Sshd]:
    """A server in a folder of its own. The folder's name is short: sockets are made in it."""
    with tempfile.TemporaryDirectory(prefix="sshd") as folder:
        server = Sshd(Path(folder), options, bashrc, mounts=mounts)
        try:
            yield server
        finally:
            server.stop()
