"""Verb `addresses`: where other nodes might reach this one, as its kernel knows it."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
import struct
import uuid
from typing import Any, Iterator, NamedTuple

from gpuops.agent.lease import boot_id
from gpuops.agent.network import attributes, interface
from gpuops.agent.node import Node

RTM_NEWADDR, RTM_GETADDR = 20, 22
NLMSG_DONE, NLM_F_REQUEST_DUMP = 3, 0x301
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_FLAGS = 1, 2, 3, 8
UNFIT = 0x01 | 0x08 | 0x20 | 0x40
"""IFA_F_TEMPORARY, DADFAILED, DEPRECATED, TENTATIVE: of no use, or of none for long."""
SCOPE_LINK = 253
NO_DEVICE, PPP = "65534", "512"
"""Kinds of interface (ARPHRD) that stand for a tunnel: WireGuard, Tailscale, OpenVPN."""
FAMILIES = {int(socket.AF_INET): "ipv4", int(socket.AF_INET6): "ipv6"}
ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that belong to nobody: what the kernel would use towards them is this node's way out."""


class Address(NamedTuple):
    """One address. `device`: its interface's number; `label`: what getifaddrs calls it, where that may differ."""

    family: int
    text: str
    prefix_len: int
    device: int
    label: str


def addresses(_node: Node, _args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: `{machine, addresses: [{interface, address, prefix_len, family, kind, speed}]}`, in the kernel's order,
    without loopback and link-local ones.

    Two nodes with the same `machine` are on one machine, in one network namespace. `kind`: `direct`, `bridge` or
    `tunnel`; `speed` is the interface's in Mbit/s, 0 where it does not say.
    """
    try:
        found = list(_from_kernel())
    except (OSError, AttributeError, struct.error):
        found = []  # not Linux, or one that does not tell
    entries = [entry for one in found for entry in _entry(one)]
    return {"machine": machine(), "addresses": entries or list(_ways_out())}


def machine() -> str:
    """What two nodes have in common that share a machine and its network, and no others do."""
    boot = boot_id()
    try:
        return f"{boot}-{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return boot or f"{platform.node()}-{uuid.getnode()}"


def _from_kernel() -> Iterator[Address]:
    request = struct.pack("=IHHIIBBBBI", 24, RTM_GETADDR, NLM_F_REQUEST_DUMP, 1, 0, 0, 0, 0, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(5.0)
        kernel.send(request)
        while True:
            data = kernel.recv(1 << 18)
            while len(data) >= 16:
                length, kind = struct.unpack_from("=IH", data)
                if kind != RTM_NEWADDR:
                    return  # the end, or an error
                yield from parse(data[16:length])
                data = data[(length + 3) & ~3 :]


def parse(message: bytes) -> list[Address]:
    """The body of one RTM_NEWADDR; nothing where the address is none to be reached at."""
    family, prefix_len, flags, scope, index = struct.unpack_from("=BBBBI", message)
    values = dict(attributes(message[8:]))
    if IFA_FLAGS in values:
        (flags,) = struct.unpack("=I", values[IFA_FLAGS])
    # On a point-to-point link IFA_ADDRESS is the other end's.
    packed = values.get(IFA_LOCAL) or values.get(IFA_ADDRESS)
    if family not in FAMILIES or packed is None or flags & UNFIT or scope >= SCOPE_LINK:
        return []
    label = values.get(IFA_LABEL, b"").rstrip(b"\0").decode(errors="replace")
    return [Address(family, socket.inet_ntop(family, packed), prefix_len, index, label)]


def _entry(one: Address) -> list[dict[str, Any]]:
    try:
        name = socket.if_indextoname(one.device)
    except OSError:
        return []  # it has just gone
    if not fit(one.text) or _about(name, "operstate") == "down":
        return []
    return [{**_described(name, one.text, one.prefix_len, one.family), "interface": one.label or name}]


def fit(text: str) -> bool:
    """Whether another machine could mean this one by this address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


def _described(name: str, text: str, prefix_len: int, family: int) -> dict[str, Any]:
    speed = _about(name, "speed")
    kind = "tunnel" if _about(name, "type") in (NO_DEVICE, PPP) else "direct"
    if os.path.isdir(f"/sys/class/net/{name}/bridge"):
        kind = "bridge"
    return {
        "interface": name,
        "address": text,
        "prefix_len": prefix_len,
        "family": FAMILIES[family],
        "kind": kind,
        "speed": int(speed) if speed.isdigit() else 0,
    }


def _about(name: str, what: str) -> str:
    try:
        with open(f"/sys/class/net/{name}/{what}") as file:
            return file.read().strip()
    except OSError:
        return ""  # `speed` of an interface that has none is an error


def _ways_out() -> Iterator[dict[str, Any]]:
    """Where the kernel does not list them: the addresses that it would use towards the world."""
    for family, target in ELSEWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # sends nothing
                own = str(probe.getsockname()[0])
            name = interface(family, target)
        except OSError:
            continue
        if fit(own):
            yield _described(name, own, 8 * len(socket.inet_pton(family, own)), int(family))
