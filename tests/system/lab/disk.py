"""What stands on a host's disk and differs from this machine's: names, SSH, which programs there are, torch."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.fakes import torchrun
from tests.system.lab.net import HANG_S

LOCALHOST = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
SAME = "gpu-node"
"""What every host is called whose image was copied."""
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"

_SSHD = """\
Port {port}
HostKey /etc/ssh/lab_host_key
AuthorizedKeysFile /etc/ssh/lab_keys .ssh/authorized_keys
PermitRootLogin yes
UsePAM no
StrictModes no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""
_TORCHRUN = """\
#!/opt/pytorch/bin/python
import sys
from torch.distributed.run import main
sys.exit(main())
"""


def hostname(name: str, names: str) -> str:
    return SAME if names == "same" else name


def hosts_file(name: str, names: str, addresses: dict[str, str]) -> str:
    """The text of a host's /etc/hosts. `addresses` are those of every host whose name can be known, its own too."""
    if names == "unresolvable":
        return LOCALHOST
    if names == "same":
        return f"{LOCALHOST}{addresses[name]} {SAME}\n"
    own = "127.0.1.1" if names == "127.0.1.1" else addresses[name]
    return LOCALHOST + "".join(f"{address} {other}\n" for other, address in {**addresses, name: own}.items())


def key_pair(path: Path) -> str:
    """Make a private key at `path`; its public line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", path], check=True, timeout=HANG_S)
    return path.with_name(path.name + ".pub").read_text().strip()


def write(upper: Path, texts: dict[str, str]) -> None:
    for path, text in texts.items():
        file = upper / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def set_up(upper: Path, name: str, login: str, port: int, sshd_options: Sequence[str]) -> str:
    """Everything that a host has whatever is asked for; returns the public line of its host key."""
    shadow = Path("/etc/shadow").read_text()
    write(upper, {
        "etc/hostname": f"{name}\n",
        "etc/machine-id": f"{uuid.uuid4().hex}\n",
        "etc/resolv.conf": "# No name server: who asks is refused at once.\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
        "etc/shadow": re.sub(r"(?m)^root:[^:]*", "root:*", shadow),  # sshd lets nobody into a locked account
        "etc/ssh/lab_config": "".join(f"{line}\n" for line in sshd_options) + _SSHD.format(port=port),
        "etc/ssh/lab_keys": f"{login}\n",
    })  # fmt: skip
    (upper / "etc/shadow").chmod(0o600)
    return key_pair(upper / "etc/ssh/lab_host_key")


def hide(upper: Path, paths: Iterable[str]) -> None:
    """Take files of this machine out of the host's sight (overlayfs: a device 0:0 above them)."""
    for path in paths:
        file = upper / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(file, stat.S_IFCHR, os.makedev(0, 0))


def programs(pattern: str) -> list[str]:
    """Programs of this machine that every user finds."""
    return [str(path) for folder in ("/usr/local/bin", "/usr/bin") for path in Path(folder).glob(pattern)]


def choose_programs(upper: Path, python3: bool, rsync: bool, torch: bool) -> None:
    hide(upper, [] if python3 else programs("python*"))
    hide(upper, [] if rsync else programs("rsync"))
    if torch:
        give_torch(upper)
    elif os.path.lexists("/opt/pytorch"):
        hide(upper, ["/opt/pytorch"])


def give_torch(upper: Path) -> None:
    """/opt/pytorch, as the images for training have it: an environment with the tests' own packages beside its own."""
    folder = upper / "opt/pytorch"
    (folder / "bin").mkdir(parents=True)
    os.setxattr(folder, "trusted.overlay.opaque", b"y")
    _give_packages(folder / "lib" / VERSION)
    python = os.path.realpath(sys.executable)
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(python)
    write(folder, {
        "pyvenv.cfg": f"home = {os.path.dirname(python)}\ninclude-system-site-packages = false\n",
        "bin/torchrun": _TORCHRUN,
    })  # fmt: skip
    (folder / "bin/torchrun").chmod(0o755)


def give_system_torch(upper: Path, names: Iterable[str]) -> None:
    """A system's Python with torch in it, called `names`, which its distribution lets pip not change (PEP 668).

    It is a copy of the tests' own: a Python takes for its own what stands beside its program.
    """
    prefix, own = Path("/usr/local"), Path(sys.base_prefix)
    library = upper / "usr/local/lib" / VERSION
    _give_packages(library)
    (library / "dist-packages").symlink_to("site-packages")  # what Debian's Python calls them
    (library / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=The system manages this Python.\n")
    (upper / "usr/local/bin").mkdir(parents=True, exist_ok=True)
    if own != prefix:
        shutil.copy(os.path.realpath(sys.executable), upper / "usr/local/bin" / VERSION)
        shared = (own / "lib").glob("libpython*.so*")
        other = ("site-packages", "dist-packages", "EXTERNALLY-MANAGED")
        for path in (*shared, *(one for one in (own / "lib" / VERSION).iterdir() if one.name not in other)):
            (upper / "usr/local" / path.relative_to(own)).symlink_to(path)
    hide(upper, programs("python"))
    for name in names:
        place = upper / "usr/local/bin" / name
        place.unlink(missing_ok=True)
        place.symlink_to(VERSION)


def _give_packages(library: Path) -> None:
    """A folder for packages that finds the tests' own as well: nothing that is installed there changes those.

    torch in it is the stub, unless the test wants the real one.
    """
    packages = sysconfig.get_path("purelib")
    write(library / "site-packages", {"lab.pth": f"import site; site.addsitedir({packages!r})\n"})
    if torchrun.is_stub():
        shutil.copytree(torchrun.FOLDER / "torch", library / "site-packages" / "torch")
