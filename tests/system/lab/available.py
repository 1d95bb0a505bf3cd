"""Whether this machine can have a lab, tried once, without the lab's own code: a bug there is a failure, not a skip."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile

from tests.system.lab.net import ENVIRON, HANG_S

PROGRAMS = {
    "bash": "bash",
    "find": "findutils",
    "hostname": "hostname",
    "ip": "iproute2",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "rsync": "rsync",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "unshare": "util-linux",
}
"""Program -> Debian package."""
SYSTEMD = "/lib/systemd/systemd"
OF_MACHINES = {"sudo": "sudo", "systemctl": "systemd", "useradd": "passwd"}
"""What hosts with a system of their own take besides."""

_PROBE = """
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root
mount -t proc proc root/proc
mount -t sysfs -o ro sysfs root/sys
mount -t devpts -o newinstance devpts root/dev
chroot root true
ip link add br0 type bridge
ip link add v0 type veth peer name v1
nft add table inet lab
nft add chain inet lab c '{ type filter hook input priority 0; }'
nft add rule inet lab c ether saddr 02:00:00:00:00:01 drop
"""

_MACHINES_PROBE = """
mkdir "$1/one" "$1/other"
mount -t cgroup2 cgroup2 "$1/one"
group=$1/one$(sed -n 's/^0:://p' /proc/self/cgroup)/gpuops-lab-probe-$RANDOM
mkdir "$group"
trap 'rmdir "$group"' EXIT
bash -euc 'echo 0 >"$0/cgroup.procs"; unshare --cgroup mount -t cgroup2 cgroup2 "$1"' "$group" "$1/other"
env --default-signal=INT true
"""


@functools.cache
def why_no_lab() -> str | None:
    """One reason why there can be no lab here; None when there can."""
    if sys.platform != "linux":
        return "hosts of a lab need Linux"
    if os.geteuid() != 0:
        return "hosts of a lab need root"
    missing = [program for program in PROGRAMS if not shutil.which(program, path=ENVIRON["PATH"])]
    if missing:
        packages = sorted({PROGRAMS[program] for program in missing})
        return f"hosts of a lab need {', '.join(missing)} (Debian: {' '.join(packages)})"
    return _refused(_PROBE)


@functools.cache
def why_no_machines() -> str | None:
    """One reason why no host here can boot a system of its own; None when it can."""
    if reason := why_no_lab():
        return reason
    missing = [program for program in OF_MACHINES if not shutil.which(program, path=ENVIRON["PATH"])]
    if missing or not os.access(SYSTEMD, os.X_OK):
        packages = sorted({OF_MACHINES[program] for program in missing or ["systemctl"]})
        return f"instances need {', '.join(missing or [SYSTEMD])} (Debian: {' '.join(packages)})"
    return _refused(_MACHINES_PROBE)


def _refused(probe: str) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        argv = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL", "--"]
        done = subprocess.run(
            [*argv, "bash", "-euc", probe, "probe", folder],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            env=ENVIRON,
        )
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"this machine refuses what a lab is made of: {said[0]}"


def lab_available() -> bool:
    return why_no_lab() is None
