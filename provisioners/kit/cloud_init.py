"""The document that cloud-init reads in a machine's first boot: its first host key, and our login. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gpuops.core.errors import Rejected
from provisioners.kit.keys import KeyPair


def document(*, host: KeyPair, login: str, user: str, max_bytes: int, who: str, bootcmd: Sequence[str] = ()) -> str:
    """The user data of a machine. Raises Rejected where it is too long.

    host      the host key of its first minutes; gpuops replaces it in the first conversation
    login     the public half of our key
    user      who logs in, with it
    bootcmd   shell that runs in every boot, before anything that may hang
    """
    told = {
        **({"bootcmd": list(bootcmd)} if bootcmd else {}),
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host.private, "ed25519_public": host.public},
        "ssh_authorized_keys": [login],
        "disable_root": user != "root",
        "ssh_pwauth": False,
    }
    text = f"#cloud-config\n{json.dumps(told, indent=1)}\n"  # what is JSON is YAML, too
    if len(text.encode()) > max_bytes:
        raise Rejected(
            f"the machines' start-up data has {len(text.encode())} bytes, and {who} takes {max_bytes}",
            "tell the makers of gpuops",
        )
    return text
