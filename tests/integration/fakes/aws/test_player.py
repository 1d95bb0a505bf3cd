"""User data as the fake AWS' instances read it: what is played, and that anything else is refused."""

from __future__ import annotations

import pytest
import yaml

from provisioners.aws import boot_script
from provisioners.kit import keys
from tests.fakes.aws import player
from tests.fakes.aws.player import Unplayable


def test_gpuops_own_user_data_is_played() -> None:
    host = keys.generate_key_pair()
    document = player.read(boot_script.document(host=host, login="ssh-ed25519 AAAA", user="ubuntu", end=1800000000.0))
    assert document["ssh_keys"]["ed25519_private"] == host.private
    assert document["ssh_authorized_keys"] == ["ssh-ed25519 AAAA"]


@pytest.mark.parametrize(
    "config",
    [
        {"bootcmd": ["true", ["echo", "a b"]], "runcmd": [["true"]]},
        {"write_files": [{"path": "/a", "content": "b", "owner": "root:root", "permissions": "0600", "defer": True}]},
        {"users": ["default", {"name": "other", "ssh_authorized_keys": ["ssh-ed25519 AAAA"]}]},
        {"package_update": False, "ssh_pwauth": False, "disable_root": True, "ssh_deletekeys": True},
    ],
)
def test_known(config: dict[str, object]) -> None:
    assert player.read(f"#cloud-config\n{yaml.safe_dump(config)}") == config


def test_none_at_all() -> None:
    assert player.read("") == {}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"swap": {"size": 1}}, "swap"),
        ({"bootcmd": "true"}, "bootcmd"),
        ({"runcmd": [3]}, "runcmd"),
        ({"package_update": True}, "package_update"),
        ({"ssh_pwauth": "unchanged"}, "ssh_pwauth"),
        ({"ssh_keys": {"ed25519_certificate": "x"}}, "ssh_keys"),
        ({"write_files": [{"path": "/a", "encoding": "b64"}]}, "write_files"),
        ({"users": [{"name": "a", "uid": 7}]}, "users"),
    ],
)
def test_refused_by_name(config: dict[str, object], named: str) -> None:
    with pytest.raises(Unplayable, match=f"^{named}: "):
        player.read(f"#cloud-config\n{yaml.safe_dump(config)}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bootcmd: []\n", "first line"),  # cloud-init would take it for nothing at all
        ("#!/bin/sh\ntrue\n", "first line"),
        ("#cloud-config\n- a\n", "not a mapping"),
        ("#cloud-config\na: [\n", "not YAML"),
        ("#cloud-config\n" + "#" * player.LIMIT, "more than 16384"),
    ],
)
def test_what_cloud_init_would_not_take(text: str, why: str) -> None:
    with pytest.raises(Unplayable, match=why):
        player.read(text)
