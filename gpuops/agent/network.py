"""Verbs `route` and `port`: by which way the other nodes are reached, and where they can meet."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
from typing import Any, Iterator

from gpuops.agent import procs
from gpuops.agent.node import Node, Refusal

LOWEST_PORT = 20000
TRIES = 200
RTM_GETROUTE = 26
RTA_DST, RTA_OIF = 1, 4
NLM_F_REQUEST = 1


def route(_node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: `{interface, address}` that the kernel would use towards `to`. Raises Refusal(`no-route`)."""
    to = str(args["to"]).strip("[]")
    try:
        family, _, _, _, target = socket.getaddrinfo(to, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing: the kernel chooses our address
            own = str(probe.getsockname()[0])
        return {"interface": interface(family, str(target[0])), "address": own}
    except OSError as error:
        raise Refusal("no-route", f"this node has no way to {to}: {error}", "check its network") from error


def interface(family: int, address: str) -> str:
    """The interface towards an address. Raises OSError."""
    return _ask_kernel(family, address) if sys.platform.startswith("linux") else _ask_route(address)


def _ask_kernel(family: int, address: str) -> str:
    packed = socket.inet_pton(family, address.partition("%")[0])
    attribute = struct.pack("=HH", 4 + len(packed), RTA_DST) + packed
    request = struct.pack("=BBBBBBBBI", family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0) + attribute
    header = struct.pack("=IHHII", 16 + len(request), RTM_GETROUTE, NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(5.0)
        kernel.send(header + request)
        answer = kernel.recv(65536)
    length, kind = struct.unpack_from("=IH", answer)
    if kind == RTM_GETROUTE - 2:
        for name, value in attributes(answer[16 + 12 : length]):
            if name == RTA_OIF:
                return socket.if_indextoname(struct.unpack("=I", value)[0])
    number = -struct.unpack_from("=i", answer, 16)[0]
    raise OSError(number, os.strerror(number))


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Netlink's attributes, by number."""
    while len(data) >= 4:
        length, name = struct.unpack_from("=HH", data)
        yield name, data[4:length]
        data = data[max(4, (length + 3) & ~3) :]


def _ask_route(address: str) -> str:
    process = procs.helper(["route", "-n", "get", address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    out, _ = process.communicate(timeout=20)
    for line in out.decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "interface":
            return value.strip()
    raise OSError("route names no interface")


def port(_node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: a TCP port that nobody uses on `address`. Raises Refusal(`no-port`)."""
    address = str(args["address"]).strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    problem = ""
    for number in random.SystemRandom().sample(range(LOWEST_PORT, ephemeral_start()), TRIES):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, number))
                return {"port": number}
            except OSError as error:
                problem = str(error)
    raise Refusal("no-port", f"no port could be opened on {address}: {problem}", "check the node's address")


def ephemeral_start() -> int:
    """Where the ports begin that the kernel gives to outgoing connections: one of those may be taken any moment."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError):
        first = 49152
    # Some machines give out nearly all ports; then none is safer than another.
    return first if first >= LOWEST_PORT + TRIES else 32768
