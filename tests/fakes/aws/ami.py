"""What an image has on its disk, laid over this machine's: systemd's units, and no other service; sshd; no user yet."""

from __future__ import annotations

import os
import re
import shutil
import sys
import uuid
from pathlib import Path

from tests.system.lab import disk

UNITS = Path("/lib/systemd/system")
TARGETS = (
    "basic emergency final halt local-fs-pre local-fs multi-user network-online network-pre network paths "
    "poweroff reboot rescue shutdown slices sockets swap sysinit time-set time-sync timers umount "
)
KEPT = [
    *(f"{name}.target" for name in TARGETS.split()),
    "systemd-halt.service",
    "systemd-poweroff.service",
    "systemd-reboot.service",
    "systemd-journald.service",
    "systemd-journald.socket",
    "systemd-journald-dev-log.socket",
]
"""Of this machine's units; the rest would look for devices and consoles, or start this machine's own services."""
LINKS = {
    "default.target": "multi-user.target",
    "sysinit.target.wants/systemd-journald.service": "../systemd-journald.service",
    "sysinit.target.wants/cloud-init.service": "../cloud-init.service",
    "sockets.target.wants/systemd-journald.socket": "../systemd-journald.socket",
    "sockets.target.wants/systemd-journald-dev-log.socket": "../systemd-journald-dev-log.socket",
    "multi-user.target.wants/ssh.service": "../ssh.service",
    "multi-user.target.wants/cloud-config.service": "../cloud-config.service",
    "multi-user.target.wants/cloud-final.service": "../cloud-final.service",
}
LOGIN = 1000
"""The number of whoever logs in, who may install into /opt/pytorch."""
FOLDER = "var/lib/lab"
CONSOLE = "var/log/cloud-init-output.log"
EMPTY = {
    "root": 0o711,  # what the tests' Python needs may be in there
    "home": 0o755,
    "etc/systemd": 0o755,
    "etc/systemd/system": 0o755,
    "etc/sudoers.d": 0o750,
    "etc/ssh/sshd_config.d": 0o755,
    "usr/lib/systemd/system": 0o755,
    "usr/lib/systemd/system-generators": 0o755,
    "var/lib/cloud": 0o755,
    "var/log/journal": 0o755,
}
"""Folders in which nothing of this machine's is to be seen."""
_STAGE = """\
[Unit]
Description=First boot, stage {stage}
{order}
[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutSec=infinity
KillMode=process
ExecStart={python} -I -S /{folder}/play.py {stage}
StandardOutput=append:/{console}
StandardError=append:/{console}
"""
_EARLY = """\
DefaultDependencies=no
Before=sysinit.target network-online.target ssh.service shutdown.target
Conflicts=shutdown.target
"""
_SSH = """\
[Unit]
Description=OpenBSD Secure Shell server
After=network.target
[Service]
ExecStart=/usr/sbin/sshd -D
KillMode=process
Restart=on-failure
RestartPreventExitStatus=255
RuntimeDirectory=sshd
RuntimeDirectoryPreserve=yes
RuntimeDirectoryMode=0755
"""
_SSHD = """\
Include /etc/ssh/sshd_config.d/*.conf
PermitRootLogin prohibit-password
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""


def lay(upper: Path, hostname: str, address: str, torch: bool, nvme: bool) -> None:
    """Make an overlay's upper folder."""
    for path, mode in EMPTY.items():
        _empty(upper / path, mode)
    disk.hide(upper, map(str, Path("/etc/ssh").glob("ssh_host_*")))
    disk.write(upper, {
        "etc/hostname": f"{hostname}\n",
        "etc/hosts": f"{disk.LOCALHOST}{address} {hostname}\n",
        "etc/fstab": "",
        "etc/machine-id": f"{uuid.uuid4().hex}\n",
        "etc/resolv.conf": "# No name server: who asks is refused at once.\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
        "etc/ssh/sshd_config": _SSHD,
        "etc/systemd/system.conf": "[Manager]\nDefaultTimeoutStopSec=10s\nShowStatus=no\n",
        "etc/systemd/journald.conf": "[Journal]\nStorage=volatile\nRuntimeMaxUse=4M\nReadKMsg=no\nAudit=\n",
        f"{FOLDER}/play.py": Path(__file__).with_name("play.py").read_text(),
        CONSOLE: "",
    })  # fmt: skip
    (upper / FOLDER).chmod(0o700)
    _lay_units(upper / "usr/lib/systemd/system")
    _lay_users(upper / "etc")
    if nvme:
        _empty(upper / "opt/dlami/nvme", 0o1777)
    if torch:
        disk.give_torch(upper)
        for path in [(upper / "opt/pytorch"), *(upper / "opt/pytorch").rglob("*")]:
            os.chown(path, LOGIN, LOGIN, follow_symlinks=False)
    elif os.path.lexists("/opt/pytorch"):
        disk.hide(upper, ["/opt/pytorch"])


def _empty(folder: Path, mode: int) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    os.setxattr(folder, "trusted.overlay.opaque", b"y")


def _lay_units(folder: Path) -> None:
    for name in KEPT:
        if (UNITS / name).exists():
            shutil.copy(UNITS / name, folder / name)
    disk.write(folder, {
        "cloud-init.service": _stage("init", _EARLY),
        "cloud-config.service": _stage("config", "After=ssh.service network-online.target\n"),
        "cloud-final.service": _stage("final", "After=cloud-config.service\n"),
        "ssh.service": _SSH,
    })  # fmt: skip
    for link, target in LINKS.items():
        (folder / link).parent.mkdir(exist_ok=True)
        (folder / link).symlink_to(target)


def _stage(stage: str, order: str) -> str:
    return _STAGE.format(
        stage=stage, order=order, folder=FOLDER, console=CONSOLE, python=os.path.realpath(sys.executable)
    )


def _lay_users(etc: Path) -> None:
    """The system's own users alone; whoever logs in is made at the first boot, as number 1000."""
    people = set()
    kept = []
    for line in Path("/etc/passwd").read_text().splitlines():
        name, _, number = line.split(":")[:3]
        if 1000 <= int(number) < 60000:
            people.add(name)
        else:
            kept.append(line)
    groups = [
        line for line in Path("/etc/group").read_text().splitlines() if not 1000 <= int(line.split(":")[2]) < 60000
    ]
    for name, lines in (("passwd", kept), ("group", groups)):
        (etc / name).write_text("".join(f"{line}\n" for line in lines))
    for name in ("shadow", "gshadow"):
        rows = [line for line in Path("/etc", name).read_text().splitlines() if line.split(":")[0] not in people]
        text = "".join(f"{line}\n" for line in rows)
        (etc / name).write_text(re.sub(r"(?m)^root:[^:]*", "root:*", text) if name == "shadow" else text)
        (etc / name).chmod(0o640)
        shutil.chown(etc / name, 0, "shadow")
