"""User data as an instance's first boot reads it: the parts of cloud-config that play.py can play, and no other.

cloud-init itself cannot run here. What is not known is refused, so that nothing is silently skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

LIMIT = 16384
"""Bytes of user data, before they are encoded."""
HEADER = "#cloud-config"
COMMANDS = ("bootcmd", "runcmd")
SWITCHES = ("ssh_deletekeys", "disable_root", "ssh_pwauth")
IDLE = ("package_update", "package_upgrade", "package_reboot_if_required")
"""Known only where they are off."""
FILE_KEYS = frozenset({"path", "content", "owner", "permissions", "append", "defer"})
USER_KEYS = frozenset({"name", "ssh_authorized_keys", "sudo", "shell", "groups", "lock_passwd"})
HOST_KEYS = frozenset(f"{kind}_{half}" for kind in ("rsa", "ecdsa", "ed25519") for half in ("private", "public"))


class Unplayable(Exception):
    """User data with something in it that would do nothing here."""


def read(user_data: str) -> dict[str, Any]:
    """The document; {} where there is none."""
    if not user_data.strip():
        return {}
    if len(user_data.encode()) > LIMIT:
        raise Unplayable(f"{len(user_data.encode())} bytes of user data, more than {LIMIT}")
    if user_data.splitlines()[0].rstrip() != HEADER:
        raise Unplayable(f"the first line is not {HEADER}: {user_data.splitlines()[0]!r}")
    try:
        document = yaml.safe_load(user_data)
    except yaml.YAMLError as error:
        raise Unplayable(f"not YAML: {error}") from None
    if not isinstance(document, dict):
        raise Unplayable(f"not a mapping: {type(document).__name__}")
    for key, value in document.items():
        _check(key, value)
    return document


def _check(key: str, value: Any) -> None:
    if key in COMMANDS:
        _need(key, isinstance(value, list) and all(_is_command(one) for one in value))
    elif key in SWITCHES:
        _need(key, isinstance(value, bool))
    elif key in IDLE:
        _need(key, value is False)
    elif key == "ssh_authorized_keys":
        _need(key, _texts(value))
    elif key == "ssh_keys":
        _need(key, isinstance(value, Mapping) and HOST_KEYS.issuperset(value) and _texts(list(value.values())))
    elif key == "write_files":
        _need(key, isinstance(value, list) and all(_is_file(one) for one in value))
    elif key == "users":
        _need(key, isinstance(value, list) and all(_is_user(one) for one in value))
    else:
        raise Unplayable(f"{key}: not among what is played here")


def _need(key: str, holds: bool) -> None:
    if not holds:
        raise Unplayable(f"{key}: a value that is not played here")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_command(one: Any) -> bool:
    return isinstance(one, str) or _texts(one)


def _is_file(one: Any) -> bool:
    return isinstance(one, dict) and FILE_KEYS.issuperset(one) and isinstance(one.get("path"), str)


def _is_user(one: Any) -> bool:
    return one == "default" or (
        isinstance(one, dict) and USER_KEYS.issuperset(one) and isinstance(one.get("name"), str)
    )
