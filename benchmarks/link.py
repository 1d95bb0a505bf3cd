"""Two hosts with a link between them that is as slow as it is told to be (Linux, root)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Failed, Skip, run
from benchmarks.ranks import Place
from tests.system.lab.available import why_no_lab
from tests.system.lab.host import Host
from tests.system.lab.hosts import Lab
from tests.system.lab.net import ENVIRON

BURST = 64_000
"""Bytes that may pass at once: one packet of the kernel's, before it is cut for the wire. More would carry small
gradients for nothing, less makes a fast link slow."""


class Link:
    """Both directions have the whole rate, as on a switched network."""

    def __init__(self, hosts: list[Host]) -> None:
        self._hosts = hosts
        self.places = [Place(host.network, host.address, "eth0") for host in hosts]

    def shape(self, megabits: int) -> None:
        """From now on so many Mbit/s. Raises Skip where the kernel cannot."""
        words = f"tc qdisc replace dev eth0 root tbf rate {megabits}mbit burst {BURST} latency 200ms"
        for host in self._hosts:
            try:
                run([*host.network, *words.split()], env=ENVIRON)
            except Failed as why:
                raise Skip(f"no link can be slowed down here: {why}") from None


@contextmanager
def link() -> Iterator[Link]:
    """All of it is gone at the end. Raises Skip."""
    if reason := why_no_lab():
        raise Skip(f"two hosts with a slow link: {reason}")
    with (
        tempfile.TemporaryDirectory(prefix="gpuops-b", ignore_cleanup_errors=True) as folder,
        Lab(Path(folder, "lab")) as lab,
    ):
        yield Link([lab.host(f"host{index}") for index in range(2)])
