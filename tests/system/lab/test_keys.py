"""Whose host it is: keys that are known, changed, of somebody in the middle; and the user's own SSH configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Laptop

KEY = "/etc/ssh/lab_host_key"


@pytest.fixture
def configured(laptop: Laptop, tmp_path: Path) -> Iterator[Laptop]:
    """The laptop with a ~/.ssh of its own, in a mount namespace: OpenSSH looks for it where the user's entry says."""
    there = Path("~/.ssh").expanduser()
    made = not there.exists()
    there.mkdir(mode=0o700, exist_ok=True)
    own = tmp_path / "dot-ssh"
    own.mkdir(mode=0o700)
    mount = f'mount --bind "{own}" "{there}" && exec "$@"'
    laptop.prefix = [*laptop.prefix, "unshare", "--mount", "sh", "-c", mount, "sh"]
    yield laptop
    laptop.end()
    if made:
        with suppress(OSError):  # ssh itself, of another test, may have put something there
            there.rmdir()


def change_key(host: Host) -> None:
    """Another machine answers at this address, or somebody in between."""
    host.stop_sshd()
    made = host.run(["sh", "-c", f"rm -f {KEY} {KEY}.pub && ssh-keygen -q -t ed25519 -N '' -f {KEY}"])
    assert made.returncode == 0, made.stderr
    host.start_sshd()


def test_the_users_own_configuration_holds(lab: Lab, configured: Laptop, tmp_path: Path) -> None:
    """Include, ProxyJump, another port, a key, known_hosts: `--host inner` is all that is typed."""
    bastion, inner = lab.host("bastion"), lab.host("inner", port=2022)
    lab.cut(inner)
    own = tmp_path / "dot-ssh"
    (own / "config").write_text("Include more\n")
    (own / "more").write_text(
        f"Host inner\n  HostName {inner.address}\n  Port 2022\n  ProxyJump door\n"
        f"Host door\n  HostName {bastion.address}\n"
        f"Host *\n  User root\n  IdentityFile {lab.identity}\n"
    )
    (own / "known_hosts").write_text(lab.known_hosts.read_text())
    done = configured.run("up", "ssh", "--name", "lab", "--host", "inner")
    assert done.returncode == 0, done.stderr
    assert configured.run("run", "--", "hostname").stdout == "inner\n"
    code = configured.run("ssh", "lab", "--", "sh", "-c", "hostname; exit 7")
    assert (code.returncode, code.stdout) == (7, "inner\n"), code.stderr
    assert configured.run("down").returncode == 0
    configured.expect_hosts_clean(inner, bastion)


def test_a_key_that_contradicts_known_hosts(lab: Lab, configured: Laptop, tmp_path: Path) -> None:
    host = lab.host("a")
    (tmp_path / "dot-ssh" / "known_hosts").write_text(lab.known_hosts.read_text())
    change_key(host)
    done = configured.run("up", "ssh", *configured.naming(host))
    assert done.returncode == 3, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith(f"error: the host key of root@{host.address} is not the one that is known")
    assert hint == f"hint: if the host was set up anew: ssh-keygen -R '{host.address}', then try again"
    configured.expect_hosts_clean(host)


def test_a_key_that_nobody_knows_is_shown(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    naming = [word for word in laptop.naming(host) if word != "--accept-new"]
    done = laptop.run("up", "ssh", *naming)
    assert done.returncode == 3, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    shown = host.run(["ssh-keygen", "-lf", f"{KEY}.pub"]).stdout.split()[1]
    assert error == f"error: root@{host.address} is an unknown host, its key is {shown}"
    assert "--accept-new" in hint
    laptop.expect_hosts_clean(host)


def test_a_key_that_changes_after_the_first_contact(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host)
    change_key(host)
    done = laptop.run("run", "--", "true")
    assert done.returncode == 4, done.stderr
    error = done.stderr.splitlines()[-2]
    assert error.startswith("error: the host key of ")
    assert "has changed" in error
    assert laptop.run("down", "--force").returncode == 0


def test_another_machine_at_an_address_that_was_used_before(lab: Lab, laptop: Laptop) -> None:
    """Once nothing of ours is there any more, its key is nobody's business."""
    host = lab.host("a")
    laptop.up(host)
    assert laptop.run("down").returncode == 0
    change_key(host)
    laptop.up(host, name="again")
    assert laptop.run("run", "--", "hostname").stdout == "a\n"
    assert laptop.run("down").returncode == 0
