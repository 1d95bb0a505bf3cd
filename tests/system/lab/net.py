"""The lab's network as text for `ip` and `nft`, and the entrances to namespaces."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HANG_S = 300.0
"""Beyond this a command of the lab's own is hanging."""
ENVIRON = {**os.environ, "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"}
"""For programs of the lab's own: not every root has the system's on the path."""
LAPTOP = 1
"""The laptop's number on the bridge; hosts count on."""


def mac(number: int) -> str:
    return f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"


def address(number: int, version: int = 4) -> str:
    return f"10.77.{number >> 8}.{number & 255}" if version == 4 else f"fd00:77::{number:x}"


def with_mask(number: int, version: int = 4) -> str:
    return f"{address(number, version)}/{16 if version == 4 else 64}"


def link_commands(number: int, pid: int) -> str:
    """In the lab's namespace: a cable from the bridge to the host whose first process is `pid`."""
    return (
        f"link add v{number} type veth peer name eth0 address {mac(number)} netns {pid}\n"
        f"link set v{number} master br0 up\n"
    )


def host_commands(number: int, version: int, docker0: bool) -> str:
    """In the host's namespace."""
    docker = "link add docker0 type bridge\naddr add 172.17.0.1/16 dev docker0\nlink set docker0 up\n"
    return (
        "link set lo up\n"
        f"addr add {with_mask(number, version)} dev eth0{' nodad' if version == 6 else ''}\n"
        "link set eth0 up\n"
        f"{docker if docker0 else ''}"
    )


@dataclass(frozen=True)
class Block:
    ports: str
    """As nft writes them: `1-21, 23-65535`."""
    proto: str
    direction: str

    def rule(self) -> str:
        # Only a connection's first packet is dropped: answers to connections that the other side may make come through.
        first = "tcp flags & (syn | ack) == syn " if self.proto == "tcp" else ""
        device = "iifname" if self.direction == "in" else "oifname"
        return f'{device} != "lo" {self.proto} dport {{ {self.ports} }} {first}drop'


def ruleset(cuts: Iterable[str], blocks: Sequence[Block]) -> str:
    """All of a namespace's rules, in place of the former ones; `cuts` are hardware addresses.

    What comes from a cut neighbour is dropped on arrival: a sender must not be told. Who has which address is still
    answered, so a cut is silent and not "no route to host".
    """
    neighbours = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\n"
    incoming = [f"ether saddr {mac} drop" for mac in sorted(cuts)]
    incoming += [block.rule() for block in blocks if block.direction == "in"]
    outgoing = [block.rule() for block in blocks if block.direction == "out"]
    return (
        "table inet lab\ndelete table inet lab\ntable inet lab {\n"
        f"chain incoming {{ type filter hook input priority 0\n{neighbours}{_lines(incoming)}}}\n"
        f"chain outgoing {{ type filter hook output priority 0\n{_lines(outgoing)}}}\n}}\n"
    )


def _lines(rules: Iterable[str]) -> str:
    return "".join(f"{rule}\n" for rule in rules)


class Place:
    """Something with an address on the bridge: the laptop or a host."""

    def __init__(self, number: int, version: int = 4) -> None:
        self.number = number
        self.version = version
        self.pid = 0
        """Of a process whose network is this place's."""
        self.cuts: set[str] = set()
        self.blocks: list[Block] = []

    @property
    def address(self) -> str:
        return address(self.number, self.version)

    @property
    def network(self) -> list[str]:
        """What to write before a command that is to use this place's network and nothing else of it."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]

    def ip(self, commands: str) -> None:
        self._feed(["ip", "-batch", "-"], commands)

    def filter(self) -> None:
        """Make cuts and blocks so; where this place is down, they hold from its start on."""
        if self.pid:
            self._feed(["nft", "-f", "-"], ruleset(self.cuts, self.blocks))

    def _feed(self, argv: list[str], text: str) -> None:
        done = subprocess.run(
            [*self.network, *argv], input=text, text=True, capture_output=True, timeout=HANG_S, env=ENVIRON
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}\n{text}"
