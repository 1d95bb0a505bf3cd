"""From what a user types, and what their configuration says, to how a host is logged in to."""

from __future__ import annotations

import getpass
import json
import shutil
from pathlib import Path

import pytest

from gpuops.core.errors import UsageError
from gpuops.transport.ssh import Target, resolve_target
from gpuops.transport.ssh.host_resolution import (
    HostSpec,
    jump_line,
    parse_host_spec,
    target_from_ssh_config,
    target_without_openssh,
)
from tests.integration.transport.ssh.conftest import Connect
from tests.integration.transport.ssh.programs import run
from tests.sshd import Sshd, make_key

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP7o4sTEDmj9wsA+cpZyP6ntZAxvDJapXatD7EhwBV1R"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("box", HostSpec("box")),
        ("root@10.0.0.5", HostSpec("10.0.0.5", None, "root")),
        ("ubuntu@box:2222", HostSpec("box", 2222, "ubuntu")),
        (" box:22 ", HostSpec("box", 22)),
        ("[::1]:2200", HostSpec("::1", 2200)),
        ("[fe80::1%eth0]", HostSpec("fe80::1%eth0")),
        ("root@fe80::1", HostSpec("fe80::1", None, "root")),
        ("ssh://me@box:22/", HostSpec("box", 22, "me")),
        ("ssh://[::1]:99", HostSpec("::1", 99)),
        ("me@corp.example@box", HostSpec("box", None, "me@corp.example")),
    ],
)
def test_what_may_be_typed(text: str, wanted: HostSpec) -> None:
    assert parse_host_spec(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", " ", "@", "root@", "@box", "-oProxyCommand=x", "root@-x", "-l@box", "box:", "box:x", "box:0", "box:70000",
     "a b", "box;id", "$(id)@box", "`id`", "box\nHost *", "a/b", "ssh://", "[box", "box]", "[a;b]:22", "[]:22",
     "a:b:c;d", "!x"],
)  # fmt: skip
def test_what_may_not(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_target(text)
    assert caught.value.hint


def test_an_identity_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        resolve_target("box", identity=str(tmp_path / "none"))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@needs_ssh
def test_the_users_configuration_counts(tmp_path: Path) -> None:
    make_key(tmp_path / "own")
    write(tmp_path / "known", f"gate.example {KEY}\n[10.1.2.3]:2201 {KEY}\n")
    write(tmp_path / "more", f"Host box\n  User included\n  IdentityFile {tmp_path}/own\n  IdentitiesOnly yes\n")
    text = (
        f"Include {tmp_path}/more\nMatch originalhost box\n  HostName 10.1.2.3\n  Port 2201\n"
        f"Host *\n  UserKnownHostsFile {tmp_path}/known\n"
    )
    target = resolve_target("box", config=write(tmp_path / "config", text))
    assert (target.host, target.port, target.user) == ("10.1.2.3", 2201, "included")
    assert (target.identities, target.identities_only) == ((str(tmp_path / "own"),), True)
    assert target.host_keys == (KEY,)
    assert not target.system
    typed = resolve_target("other@box:99", config=tmp_path / "config")
    assert (typed.host, typed.port, typed.user, typed.host_keys) == ("10.1.2.3", 99, "other", ())


@needs_ssh
def test_an_apostrophe_in_a_path_is_no_quotation_mark(tmp_path: Path) -> None:
    known = tmp_path / "o'hara" / "known_hosts"
    known.parent.mkdir()
    known.write_text("there ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\n")
    said = {"hostname": ["there"], "userknownhostsfile": [f"{known} /nowhere"]}
    assert target_from_ssh_config(parse_host_spec("there"), said, {}).host_keys


def test_an_identity_given_is_the_only_one(tmp_path: Path) -> None:
    make_key(tmp_path / "own")
    target = resolve_target("box", identity=str(tmp_path / "own"), config=write(tmp_path / "config", ""))
    assert (target.identities, target.identities_only) == ((str(tmp_path / "own"),), True)
    assert target.user == getpass.getuser()


@needs_ssh
def test_a_host_key_alias_is_looked_up(tmp_path: Path) -> None:
    text = f"Host box\n  HostName 10.0.0.9\n  HostKeyAlias farm\n  UserKnownHostsFile {tmp_path}/known\n"
    write(tmp_path / "known", f"farm {KEY}\n")
    assert resolve_target("box", config=write(tmp_path / "config", text)).host_keys == (KEY,)


@needs_ssh
@pytest.mark.parametrize(
    ("lines", "system"),
    [
        ("", False),
        ("Compression yes\n  ServerAliveInterval 3\n  ForwardAgent yes", False),
        ("Ciphers aes256-ctr", False),
        ("ProxyJump jump", True),
        ("ProxyCommand nc %h %p", True),
        ("ProxyCommand none", False),
        ("IdentityAgent /tmp/agent.sock", True),
        ("CertificateFile ~/.ssh/cert.pub", True),
        ("PKCS11Provider /usr/lib/p11.so", True),
        ("KexAlgorithms +diffie-hellman-group14-sha1", True),
        ("HostKeyAlgorithms +ssh-rsa", True),
    ],
)
def test_what_takes_the_systems_ssh(tmp_path: Path, lines: str, system: bool) -> None:
    target = resolve_target("box", config=write(tmp_path / "config", f"Host box\n  {lines}\n"))
    assert target.system == system


@needs_ssh
def test_security_keys_and_certificates_take_the_systems_ssh(tmp_path: Path) -> None:
    import base64

    make_key(tmp_path / "plain")
    config = write(tmp_path / "config", f"IdentityFile {tmp_path}/plain\nIdentityFile {tmp_path}/touch\n")
    assert not resolve_target("box", config=config).system
    kind = b"sk-ssh-ed25519@openssh.com"
    blob = base64.b64encode(len(kind).to_bytes(4, "big") + kind).decode()
    write(tmp_path / "touch.pub", f"{kind.decode()} {blob} me\n")
    assert resolve_target("box", config=config).system
    (tmp_path / "touch.pub").unlink()
    write(tmp_path / "plain-cert.pub", "a certificate\n")
    assert resolve_target("box", config=config).system


@needs_ssh
def test_a_broken_configuration_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"(?i)nosuchoption|configuration"):
        resolve_target("box", config=write(tmp_path / "config", "NoSuchOption yes\n"))


def test_jumps_become_one_command() -> None:
    assert jump_line("me@gate:2200") == "ssh -o BatchMode=yes -W '[%h]:%p' -p 2200 -l me -- gate"
    twice = jump_line("one,two")
    assert twice.endswith("-W '[%h]:%p' -- two")
    assert "%%h" in twice  # the inner one's tokens are for the inner ssh
    with pytest.raises(UsageError):
        jump_line("gate;id")


@needs_ssh
@pytest.mark.parametrize("jumps", ["first", "first,second"])
def test_through_jump_hosts(shared_sshd: Sshd, connected: Connect, tmp_path: Path, jumps: str) -> None:
    """All of them the same server here; the far name is known to the last jump host alone."""
    known = "".join(f"{name} {shared_sshd.host_key}\n" for name in ("first", "second", "far"))
    text = (
        f"Host first second far\n  HostName 127.0.0.1\n  Port {shared_sshd.port}\n  User {shared_sshd.user}\n"
        f"  HostKeyAlias %n\n  IdentityFile {shared_sshd.identity}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {write(tmp_path / 'known', known)}\nHost far\n  ProxyJump {jumps}\n"
    )
    text = text.replace("HostKeyAlias %n\n", "")
    for name in ("first", "second", "far"):
        text += f"Host {name}\n  HostKeyAlias {name}\n"
    target = resolve_target("far", config=write(tmp_path / "config", text))
    assert target.system
    assert target.host_keys == (shared_sshd.host_key,)
    before = shared_sshd.logins()
    assert run(connected(target, "openssh"), ["printf", "through"])[1] == b"through"
    assert shared_sshd.logins() - before == 1 + len(jumps.split(","))
    from gpuops.transport.ssh import scan_host_key

    assert scan_host_key(target) == (shared_sshd.host_key,)


def test_without_an_ssh_to_ask(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    make_key(tmp_path / ".ssh" / "id_ed25519")
    target = target_without_openssh(HostSpec("no-such-host-here", 2200, "me"), None, tmp_path)
    assert (target.host, target.port, target.user) == ("no-such-host-here", 2200, "me")
    assert target.identities == (str(tmp_path / ".ssh" / "id_ed25519"),)


def test_a_target_survives_json() -> None:
    target = Target(
        "fe80::1%eth0", 99, "me", ("/a key",), True, "ssh -W [%h]:%p x", True, (("IdentityAgent", "none"),), (KEY,)
    )
    assert Target.from_document(json.loads(json.dumps(target.document()))) == target
    assert Target.from_document({"host": "box"}) == Target("box")
    for broken in ({}, {"host": "box", "port": "x"}, {"host": "box", "options": [["a"]]}, {"host": "a\nb"}):
        with pytest.raises(UsageError):
            Target.from_document(broken)


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "-oProxyCommand=id"}, {"host": "a b"}, {"host": "a", "user": "-l"}, {"host": "a", "user": "x;id"},
        {"host": "a", "port": 0}, {"host": "a", "proxy": "x\nHost *"}, {"host": "a", "identities": ("k\nx",)},
        {"host": "a", "options": (("Host x\nProxyCommand", "id"),)}, {"host": "a", "options": (("A", "x\ny"),)},
    ],
)  # fmt: skip
def test_a_target_is_no_way_to_say_more(fields: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Target(**fields)  # type: ignore[arg-type]
