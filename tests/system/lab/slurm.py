"""A Slurm cluster on hosts of a lab: a login node with the controller, two compute nodes, one home for all of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import until
from tests.system.lab import slurm_accounts
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.net import ENVIRON

PROGRAMS = {"munged": "munge", "sbatch": "slurm-client", "slurmctld": "slurmctld", "slurmd": "slurmd"}
"""Program -> Debian package."""
NODES = ("c1", "c2")
USER, USER_ID = "ann", 1001
"""Whose jobs they are: at a login node nobody is root."""
KILL_WAIT_S = 5
CONFIG = f"""
ClusterName=lab
SlurmctldHost=login
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
ProctrackType=proctrack/@PROCTRACK
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
KillWait={KILL_WAIT_S}
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
GresTypes=gpu
NodeName=c1,c2 CPUs=8 RealMemory=1000 Gres=gpu:8
PartitionName=gpu Nodes=c1,c2 Default=YES MaxTime=02:00:00 DefaultTime=01:00:00 PriorityTier=1 PreemptMode=CANCEL
PartitionName=small Nodes=c1 MaxTime=00:10:00 PriorityTier=1
PartitionName=urgent Nodes=c1,c2 MaxTime=01:00:00 PriorityTier=9
"""
BY_FILE = """
JobCompType=jobcomp/filetxt
JobCompLoc=/run/slurm/jobcomp
"""
"""What a cluster without a database knows of jobs that have ended."""
GRES = "Name=gpu File=/run/gpu[0-7]\n"
START = """
mkdir -p /run/slurm/state /run/slurm/spool /run/munge /etc/slurm
printf '%s' "$1" >/etc/slurm/slurm.conf
printf '%s' "$2" >/etc/slurm/gres.conf
echo CgroupPlugin=cgroup/v1 >/etc/slurm/cgroup.conf
if [ "$3" ]; then # a part of this machine's hierarchy, so that jobs of the same number on two hosts are not one
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mkdir /sys/fs/cgroup/freezer /run/freezer
    mount -t cgroup -o freezer freezer /run/freezer
    mkdir "/run/freezer/$3"
    mount --bind "/run/freezer/$3" /sys/fs/cgroup/freezer
fi
printf '%01024d' 7 >/run/munge/key; chmod 600 /run/munge/key
for gpu in 0 1 2 3 4 5 6 7; do mknod "/run/gpu$gpu" c 1 3; done
useradd --uid "$4" --no-create-home --home-dir /root --shell /bin/bash --password '*' "$5"
munged --key-file /run/munge/key --socket /run/munge/munge.socket.2 --pid-file /run/munge/pid \\
    --log-file /run/munge/log --seed-file /run/munge/seed
"""


GROUPS = f"/run/freezer/gpuops-lab-{os.getpid()}-*"


def why_no_slurm(database: bool = False) -> str | None:
    """Why there can be no Slurm here; None where there can."""
    programs = {**PROGRAMS, **(slurm_accounts.PROGRAMS if database else {})}
    missing = [program for program in programs if not shutil.which(program, path=ENVIRON["PATH"])]
    packages = " ".join(sorted({programs[program] for program in missing}))
    return f"a Slurm cluster needs {', '.join(missing)} (Debian: {packages})" if missing else None


def has_freezer() -> bool:
    """Whether this kernel has the group of the first version by which Slurm knows a job's processes."""
    mounts = Path("/proc/self/mounts").read_text()
    return " cgroup " in mounts and "/freezer " in mounts


class Slurm:
    """Up, with all nodes idle, once it is made. `home`: the folder that all hosts have as /root. `proctrack`: by which
    it knows a job's processes; `cgroup`, as most sites, takes a kernel with the first version of these. `database`: it
    keeps accounts in one, instead of a file of jobs that have ended."""

    def __init__(self, lab: Lab, home: Path, proctrack: str, *, database: bool = False) -> None:
        self.home = home
        os.chown(home, USER_ID, USER_ID)
        self._database = database
        self._proctrack = proctrack
        self.login = lab.host("login", home=home)
        self.nodes = [lab.host(name, home=home) for name in NODES]
        for host in self.hosts:
            self._start(host)
        until(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T") == ["idle"] * 5, "idle nodes")

    @property
    def hosts(self) -> list[Host]:
        return [self.login, *self.nodes]

    def _start(self, host: Host) -> None:
        group = f"gpuops-lab-{os.getpid()}-{host.name}" if self._proctrack == "cgroup" else ""
        config = CONFIG.replace("@PROCTRACK", self._proctrack)
        config += slurm_accounts.CONFIG if self._database else BY_FILE
        host.run(["bash", "-euc", START, "start", config, GRES, group, str(USER_ID), USER], check=True)
        keeps_accounts = self._database and host is self.login
        if keeps_accounts:
            slurm_accounts.start_database(host)
        daemon = "slurmctld" if host is self.login else "slurmd"
        host.run([daemon, "-L", f"/run/slurm/{daemon}.log"], check=True)
        if keeps_accounts:
            slurm_accounts.add_accounts(host)

    def close(self) -> None:
        """End all jobs, and remove what the kernel would keep of them."""
        self.login.run(["scancel", "--full", "--signal=KILL", f"--user={USER}"])
        for host in self.nodes:
            host.run(["pkill", "-KILL", "slurm"])  # of this host's own processes
            host.run(["find", "/run/freezer", "-mindepth", "1", "-depth", "-type", "d", "-path", GROUPS, "-delete"])

    def ask(self, *argv: str) -> list[str]:
        """What a command on the login node prints, by lines."""
        return self.login.run(argv, check=True).stdout.splitlines()

    def ours(self) -> list[str]:
        """Command lines of what runs of ours on the nodes."""
        return [line for host in self.nodes for line in host.processes() if ".gpuops-" in line]

    def files(self) -> list[str]:
        """What lies of ours in the home."""
        return sorted(str(path) for path in self.home.glob(".gpuops-*"))

    def jobs(self) -> Sequence[str]:
        return self.ask("squeue", "-h", "-o", "%i %j %T")
