"""Whole hosts on one Linux machine, as root: own address, name, processes, files and sshd, and a laptop beside them.

    with Lab(folder) as lab:
        a, b = lab.host("a"), lab.host("b", ipv6_only=True)
        subprocess.run([*a.ssh, "uname -n"])
        lab.cut(a, b)
        a.vanish()

A host sees this machine's files and may change them: the changes are its own, in memory, and end with the lab. Of
/root, /tmp, /run and /dev/shm it has its own. Everything is inside namespaces of the lab's first process and ends with
it, which is when this process ends, however that happens: nothing gets a name that could be in use on the machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.system.lab import disk
from tests.system.lab.first_process import FirstProcess, end_members
from tests.system.lab.host import Host
from tests.system.lab.net import LAPTOP, Block, Place, mac, with_mask

__all__ = ["Host", "Lab", "Place"]

KEEPER = Path(__file__).with_name("keeper.sh")
NAMES = ("plain", "unresolvable", "127.0.1.1", "same")


class Lab:
    """A network with a laptop, which is this machine's programs that are started with `enter`, and hosts.

    `folder` is the lab's own: what an earlier run left there is removed first, and all of it at the end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "disks").mkdir(parents=True)
        self.hosts: list[Host] = []
        self.identity = self.folder / "id_ed25519"
        self.login = disk.key_pair(self.identity)
        addresses = [mac(LAPTOP), with_mask(LAPTOP), with_mask(LAPTOP, 6)]
        self._first = FirstProcess(
            ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--",
             "bash", str(KEEPER), str(self.folder / "disks"), *addresses]
        )  # fmt: skip
        self.laptop = Place(LAPTOP)
        self.laptop.pid = self._first.pid
        self._network = os.open(f"/proc/{self._first.pid}/ns/net", os.O_RDONLY)

    @property
    def enter(self) -> list[str]:
        """What to write before a command for the laptop: this machine, with the lab's network and no other."""
        return self.laptop.network

    @property
    def lives(self) -> bool:
        return self._network >= 0 and self._first.lives

    @property
    def known_hosts(self) -> Path:
        """A file with every host's key, as the laptop would keep it."""
        return self.folder / "known_hosts"

    @property
    def disks(self) -> Path:
        """Where the hosts' disks are, as seen from this process."""
        return Path(f"/proc/{self._first.pid}/root{self.folder}/disks")

    def host(
        self,
        name: str,
        *,
        names: str = "plain",
        ipv6_only: bool = False,
        docker0: bool = False,
        home: Path | None = None,
        python3: bool = True,
        rsync: bool = True,
        torch: bool = True,
        port: int = 22,
        sshd_options: Sequence[str] = (),
    ) -> Host:
        """A new host, up and reachable over SSH.

        names    what it makes of host names. plain: all hosts know each other's. unresolvable: it knows none, not even
                 its own. 127.0.1.1: to it its own is that address, as on Debian. same: all such hosts have one name,
                 which each takes for itself.
        docker0  whether it has a bridge with the address that such bridges have on every host.
        home     a folder of this machine to be its /root, where several hosts share one.
        torch    whether there is an /opt/pytorch whose Python is the tests' own.
        sshd_options stand before the lab's own lines: the first one counts.
        """
        assert names in NAMES, names
        assert name not in [host.name for host in self.hosts], f"there is a host {name}"
        host = Host(self, name, LAPTOP + 1 + len(self.hosts), names, 6 if ipv6_only else 4, docker0)
        for folder in ("upper", "work", "root", "home"):
            (host.disk / folder).mkdir(parents=True, mode=0o700 if folder == "home" else 0o755)
        host.home = home.resolve() if home else self.folder / "disks" / name / "home"
        host.port = port
        upper = host.disk / "upper"
        host.host_key = disk.set_up(upper, host.hostname, self.login, port, sshd_options)
        disk.choose_programs(upper, python3, rsync, torch)
        self.hosts.append(host)
        self._tell_names()
        host.start()
        return host

    def _tell_names(self) -> None:
        known = {host.name: host.address for host in self.hosts if host.names != "same"}
        for host in self.hosts:
            text = disk.hosts_file(host.name, host.names, {**known, host.name: host.address})
            (host.disk / "hosts").write_text(text)  # in place: it is mounted
        self.known_hosts.write_text("".join(host.known_hosts_line for host in self.hosts))

    def cut(self, a: Place, b: Place | None = None) -> None:
        """Let nothing pass between two places any more; nobody is told. Without `b`: between `a` and the laptop."""
        b = b or self.laptop
        for one, other in ((a, b), (b, a)):
            one.cuts.add(mac(other.number))
            one.filter()

    def mend(self, a: Place, b: Place | None = None) -> None:
        b = b or self.laptop
        for one, other in ((a, b), (b, a)):
            one.cuts.discard(mac(other.number))
            one.filter()

    def block(self, place: Place, ports: str, proto: str = "tcp", direction: str = "in") -> None:
        """Drop what is for these ports (`1-21, 23-65535`) of a place, or with direction "out" what it sends to others'.

        As a provider's firewall does: connections that are there go on, and the place's own programs reach each other.
        """
        place.blocks.append(Block(ports, proto, direction))
        place.filter()

    def unblock(self, place: Place) -> None:
        place.blocks.clear()
        place.filter()

    def close(self) -> None:
        """End everything in the lab, the laptop's programs too, and remove its files. Again: nothing."""
        self._first.kill()
        for host in self.hosts:
            host.forget()
        if self._network >= 0:
            end_members("net", os.readlink(f"/proc/self/fd/{self._network}"))
            os.close(self._network)  # only now may another namespace get its number
            self._network = -1
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
