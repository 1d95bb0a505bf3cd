"""A PBS cluster on hosts of a lab: a login node and two compute nodes with one home, and a stand-in for PBS."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.system.lab.hosts import Lab

PROGRAM = Path(__file__).with_name("pbs_commands.py")
ON_LOGIN = ("qsub", "qdel", "qalter", "qselect", "qstat", "pbsnodes")
NODES = ("c1", "c2")


class Pbs:
    """Ready once it is made. `home`: the folder that all hosts have as /root."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.home = home
        (home / ".pbs/jobs").mkdir(parents=True)
        shutil.copy(PROGRAM, home / ".pbs/pbs.py")
        (home / ".pbs/pbs.py").chmod(0o755)
        self.login = lab.host("login", home=home)
        self.nodes = [lab.host(name, home=home) for name in NODES]
        (home / ".ssh").mkdir(mode=0o700)
        shutil.copy(lab.identity, home / ".ssh/id_ed25519")
        for host in (self.login, *self.nodes):
            host.run(["mkdir", "-p", "/opt/pbs/bin"], check=True)
            names = ON_LOGIN if host is self.login else ("pbsdsh",)
            for name in ("pbs_stand_in", *names):
                host.run(["ln", "-s", "/root/.pbs/pbs.py", f"/opt/pbs/bin/{name}"], check=True)
        keys = "".join(f"{host.name} {' '.join(host.host_key.split()[:2])}\n" for host in self.nodes)
        self.known_hosts = home / ".ssh/known_hosts"
        """By which the user's own `ssh` knows the machines."""
        for path in (self.known_hosts, home / ".pbs/known_hosts"):
            path.write_text(keys)

    def ask(self, *argv: str) -> list[str]:
        """What a command of PBS's prints on the login node, by lines."""
        program, *rest = argv
        return self.login.run([f"/opt/pbs/bin/{program}", *rest], check=True).stdout.splitlines()

    def jobs(self) -> list[str]:
        """Those that are not over."""
        return self.ask("qselect")

    def fill(self) -> str:
        """A job of somebody's that takes all machines. Returns its number."""
        asked = ("-N", "other", "-o", "/dev/null", "-l", "select=2:ncpus=4", "-l", "walltime=1:00:00")
        return self.login.run(["/opt/pbs/bin/qsub", *asked], input="sleep 600").stdout.strip()

    def ours(self) -> list[str]:
        """Command lines of what runs of ours on the nodes."""
        return [line for host in self.nodes for line in host.processes() if ".gpuops-" in line]

    def files(self) -> list[str]:
        """What lies of ours in the home."""
        return sorted(str(path) for path in self.home.glob(".gpuops-*"))
