"""Instances of the fake AWS as machines of a lab.

    with Lab(folder) as lab:
        machines = Machines(lab, on_power_off=print)
        machines.start(Order(id="i-1", user_data="#cloud-config\n…"))
        machines.run("i-1", ["systemctl", "is-active", "ssh"]); machines.power_off("i-1")

An instance has the namespaces, the network and the disk that a lab's host has (see tests/system/lab); its first process
is systemd itself, with few units. What it lacks of a real one: a kernel and devices of its own, udev, D-Bus, PAM for
logins, a name server. Its public address is the laptop's way to it, and is translated; instances have only the private
ones of each other. Everything ends with the lab, or with this process. What the kernel would keep, systemd's groups of
processes, is removed by a small program that outlives us for that.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fakes.aws import ami
from tests.fakes.aws.machine import FOLDER, Machine
from tests.fakes.aws.orders import MISHAPS, NOTICES, Order
from tests.fakes.aws.player import Unplayable
from tests.system.lab.net import ENVIRON, HANG_S

if TYPE_CHECKING:
    from tests.system.lab.hosts import Lab

__all__ = ["MISHAPS", "Machines", "Order"]

FIRST = 2048
"""The first number of an instance on the bridge; hosts of the lab count from 2."""
NEWNET = 0x40000000


class Machines:
    def __init__(self, lab: Lab, on_power_off: Callable[[str], None] | None = None) -> None:
        self.lab = lab
        self.on_power_off = on_power_off
        """Called with an id, in a thread of ours, when a system has powered itself off."""
        self.problems: list[str] = []
        """Sentences: user data that is not known here, commands of it that failed, a system that fell over."""
        self.group = f"gpuops-lab-{secrets.token_hex(4)}"
        self._numbers = count(FIRST)
        self._machines: dict[str, Machine] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._sweeper = subprocess.Popen(
            ["unshare", "--mount", "--", "sh", str(FOLDER / "sweep.sh"), self.group],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd="/", env=ENVIRON, start_new_session=True,
        )  # fmt: skip

    def machine(self, id: str) -> Machine:
        with self._lock:
            if id not in self._machines:
                self._machines[id] = Machine(self, id, next(self._numbers))
            return self._machines[id]

    def reserve(self, id: str) -> str:
        """The address that it has or will have."""
        return self.machine(id).address

    address = reserve

    def public(self, id: str) -> str:
        """Its public address."""
        return self.machine(id).public

    def start(self, order: Order) -> None:
        """Returns when its system boots, which takes a second or two more until somebody can log in."""
        assert order.mishap in MISHAPS, order.mishap
        try:
            self.machine(order.id).start(order)
        except Unplayable as error:
            self.complain(f"instance {order.id}: user data: {error}")
            raise

    def stop(self, id: str) -> None:
        """Gone in this instant, or never to come; again: nothing."""
        self.machine(id).stop()

    def power_off(self, id: str) -> None:
        self._go(id, "poweroff")

    def reboot(self, id: str) -> None:
        self._go(id, "reboot")

    def _go(self, id: str, how: str) -> None:
        done = self.run(id, ["systemctl", how])
        assert done.returncode <= 0, done.stderr  # less: the very shutdown that it asked for was quicker to end it

    def notice(self, id: str, kind: str, document: Mapping[str, Any] | None) -> None:
        """What its metadata service tells from now on; None takes it back."""
        assert kind in NOTICES, kind
        self.machine(id).notice(kind, document)

    def firewall(self, id: str, cidrs: Sequence[str], members: Sequence[str]) -> None:
        """Only these networks reach SSH, only these addresses anything else; before a boot: from then on."""
        self.machine(id).firewall(cidrs, members)

    # ---- inside

    def run(self, id: str, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return self.machine(id).run(argv, **options)

    def processes(self, id: str) -> list[str]:
        return self.machine(id).processes()

    def root(self, id: str) -> Path:
        return self.machine(id).root

    def up(self, id: str) -> bool:
        return bool(self.machine(id).pid)

    def console(self, id: str) -> str:
        """What its boots printed."""
        file = self.machine(id).disk / "upper" / ami.CONSOLE
        return file.read_text(errors="replace") if file.exists() else ""

    # ---- for the service

    def listen(self) -> socket.socket:
        """A listening socket in the laptop's network: made by a thread that went there, it stays there."""
        made: list[socket.socket | OSError] = []
        thread = threading.Thread(target=self._listen_there, args=(made,))
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]

    def _listen_there(self, made: list[socket.socket | OSError]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        handle = os.open(f"/proc/{self.lab.laptop.pid}/ns/net", os.O_RDONLY)
        try:
            if library.setns(handle, NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_server((self.lab.laptop.address, 0), backlog=64))
        except OSError as error:
            made.append(error)
        finally:
            os.close(handle)

    # ---- for machines

    def powered_off(self, id: str) -> None:
        if self.on_power_off:
            self.on_power_off(id)

    def complain(self, line: str) -> None:
        self.problems.append(line)

    def wait(self, seconds: float) -> None:
        self._closing.wait(seconds)

    @property
    def closed(self) -> bool:
        return self._closing.is_set() or not self.lab.lives

    def close(self) -> None:
        self._closing.set()
        for machine in list(self._machines.values()):
            machine.stop()
        assert self._sweeper.stdin
        self._sweeper.stdin.close()
        self._sweeper.wait(HANG_S)

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
