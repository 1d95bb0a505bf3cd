"""What known_hosts files say, read as OpenSSH reads them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpuops.core.errors import NodeError
from gpuops.transport.ssh import fingerprint, known_keys, revoked_keys
from gpuops.transport.ssh.host_keys import canonical
from tests.sshd import make_key

needs_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("keys")
    return [make_key(folder / str(number)) for number in range(4)]


@needs_keygen
def test_names_ports_and_patterns(tmp_path: Path, keys: list[str]) -> None:
    one, two, three, four = keys
    file = tmp_path / "known"
    file.write_text(
        f"# a comment\n\nbox,10.0.0.1 {one} me@home\n[box]:2222 {two}\n*.example,!bad.example {three}\n"
        f"broken line\nbox ssh-ed25519 !!!\n|1|broken {four}\nBOX6 {four}\n@cert-authority * {four}\n"
    )
    assert known_keys("box", 22, [file]) == (one,)
    assert known_keys("Box", 22, [file]) == (one,)
    assert known_keys("10.0.0.1", 22, [file]) == (one,)
    assert known_keys("box", 2222, [file]) == (two,)
    assert known_keys("box", 23, [file]) == ()
    assert known_keys("a.example", 22, [file]) == (three,)
    assert known_keys("bad.example", 22, [file]) == ()
    assert known_keys("box6", 22, [file]) == (four,)
    assert known_keys("box", 22, [tmp_path / "none"]) == ()


@needs_keygen
def test_hashed_names(tmp_path: Path, keys: list[str]) -> None:
    file = tmp_path / "known"
    file.write_text(f"box {keys[0]}\n[far.example]:99 {keys[1]}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "box" not in file.read_text()
    assert known_keys("box", 22, [file]) == (keys[0],)
    assert known_keys("far.example", 99, [file]) == (keys[1],)
    assert known_keys("far.example", 22, [file]) == ()


@needs_keygen
def test_a_revoked_key_is_not_known(tmp_path: Path, keys: list[str]) -> None:
    mine, systems = tmp_path / "mine", tmp_path / "systems"
    mine.write_text(f"box {keys[0]}\nbox {keys[1]}\n")
    systems.write_text(f"@revoked * {keys[0]}\n")
    assert known_keys("box", 22, [mine, systems]) == (keys[1],)
    assert revoked_keys("box", 22, [mine, systems]) == (keys[0],)


@needs_keygen
def test_fingerprints_are_openssh_s(tmp_path: Path) -> None:
    for kind in ("ed25519", "ecdsa", "rsa"):
        key = make_key(tmp_path / kind, kind=kind)
        said = subprocess.run(
            ["ssh-keygen", "-l", "-f", str(tmp_path / f"{kind}.pub")], check=True, capture_output=True, text=True
        ).stdout
        assert fingerprint(key) == said.split()[1]
        assert canonical(f"{key} a comment") == key


@pytest.mark.parametrize(
    "key", ["", "ssh-ed25519", "ssh-ed25519 AAAA", "ssh-ed25519 !", "ssh-rsa AAAAC3NzaC1lZDI1NTE5"]
)
def test_what_is_no_key(key: str) -> None:
    with pytest.raises(NodeError, match="not a host key"):
        fingerprint(key)
