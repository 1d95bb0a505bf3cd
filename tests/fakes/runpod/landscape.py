"""Where pods are machines: a lab's network, with the service on it.

    with Lab(folder) as lab, FakeRunPod(tmp_path, lab=lab) as fake:
        …                                   # programs started with lab.enter reach fake.url, and so do pods
        pod.body.run(["env"]); pod.body.first_environment; pod.body.processes(); pod.body.starts

A pod has the namespaces, the network and the disk that a lab's host has (see tests/system/lab), and its image's first
process. Its public address is its own on the lab's bridge; from there only mapped ports lead into it, and nothing
from another pod: members of a cluster reach each other over `ens1`. Everything ends with the lab.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.runpod.container import Container
from tests.fakes.runpod.records import Cluster, Pod
from tests.system.lab.net import address

if TYPE_CHECKING:
    from tests.fakes.runpod.fake import FakeRunPod
    from tests.system.lab.hosts import Lab

FIRST = 1024
"""The first number of a pod on the bridge; hosts of the lab count from 2."""
TICK_S = 0.2


class Landscape:
    container = Container
    """What a pod's machine is."""

    def __init__(self, lab: Lab, fake: FakeRunPod) -> None:
        self.lab = lab
        self.fake = fake
        self.inside = lab.folder / "disks"
        """Where disks are, in the lab's view."""
        self._numbers = count(FIRST)
        self._bridges: set[int] = set()
        self._bodies: list[Container] = []
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    @property
    def disks(self) -> Path:
        return self.lab.disks

    @property
    def pods_network(self) -> str:
        return f"{address(FIRST)}/22"

    def listen(self) -> socket.socket:
        """A socket in the laptop's network: made by a thread that went there, it stays there."""
        made: list[socket.socket | OSError] = []
        thread = threading.Thread(target=self._listen_there, args=(made,))
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]

    def begin(self) -> None:
        """From now on pods get on while nobody asks."""
        self._ticker.start()

    def _listen_there(self, made: list[socket.socket | OSError]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        handle = os.open(f"/proc/{self.lab.laptop.pid}/ns/net", os.O_RDONLY)
        try:
            if library.setns(handle, os.CLONE_NEWNET if hasattr(os, "CLONE_NEWNET") else 0x40000000):
                raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_server((self.lab.laptop.address, 0), backlog=64))
        except OSError as error:
            made.append(error)
        finally:
            os.close(handle)

    def make_body(self, pod: Pod) -> Container:
        with self._lock:
            body = self.container(self, pod, next(self._numbers))
            self._bodies.append(body)
            return body

    def volume(self, one: str) -> Path:
        """A volume's folder in the lab's view; it is there as long as the lab."""
        (self.disks / "volumes" / one).mkdir(parents=True, exist_ok=True)
        return self.inside / "volumes" / one

    def join(self, cluster: Cluster, number: int, pid: int) -> None:
        """A second cable: to the cluster's own network, in which nobody else is."""
        with self._lock:
            if cluster.number not in self._bridges:
                self.lab.laptop.ip(
                    f"link add c{cluster.number} type bridge mcast_snooping 0\nlink set c{cluster.number} up\n"
                )
                self._bridges.add(cluster.number)
        self.lab.laptop.ip(
            f"link add e{number} type veth peer name ens1 netns {pid}\nlink set e{number} master c{cluster.number} up\n"
        )

    def networks(self) -> list[str]:
        """Processes in whose networks somebody can be who asks."""
        return [str(pid) for pid in (self.lab.laptop.pid, *(body.pid for body in self._bodies)) if pid]

    def _tick(self) -> None:
        while not self._closing.wait(TICK_S):
            self.fake.settle()

    def wait(self, seconds: float) -> None:
        self._closing.wait(seconds)

    @property
    def closed(self) -> bool:
        return self._closing.is_set() or not self.lab.lives

    def complain(self, line: str) -> None:
        self.fake.problems.append(line)

    def close(self) -> None:
        self._closing.set()
        if self._ticker.is_alive():
            self._ticker.join()
        for body in self._bodies:
            body.halt()
