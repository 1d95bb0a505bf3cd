"""Keys are found by name, header and shape; ordinary text and placeholders are not. All keys here are made up."""

from __future__ import annotations

import json
import os
import random
import string
import time
from pathlib import Path

import pytest

from gpuops.push.files import FileEntry, entry
from gpuops.push.keyscan import LIMIT, by_content, by_name, find_keys

LETTERS = string.ascii_letters + string.digits


def made_up(length: int, alphabet: str = LETTERS, seed: int = 7) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=length))


HEX = "0123456789abcdef"
AWS = f"aws_access_key_id = AKIA{made_up(16, string.ascii_uppercase)}\naws_secret_access_key = {made_up(40)}\n"
BODY = "\n".join(made_up(64, seed=line) for line in range(6))
KEYS = {
    "a RunPod API key": f"key = 'rpa_{made_up(46, string.ascii_uppercase + string.digits)}'",
    "a GitHub token": f"https://ghp_{made_up(36)}@github.com/a/b",
    "a Hugging Face token": f"HF_TOKEN=hf_{made_up(34)}",
    "an Anthropic API key": f"sk-ant-api03-{made_up(95)}",
    "an OpenAI API key": f'client(api_key="sk-proj-{made_up(120)}")',
    "a Slack token": f"xoxb-729406518342-{made_up(24)}",
    "a Google API key": f"AIza{made_up(35)}",
    "a Lambda API key": f"secret_laptop_{made_up(32, HEX)}.{made_up(32)}",
    "a Vast API key": f"export VAST_API_KEY={made_up(64, HEX)}",
    "a Weights & Biases API key": f"WANDB_API_KEY: {made_up(40, HEX)}",
    "an AWS access key with its secret": AWS,
    "a private key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{BODY}\n-----END OPENSSH PRIVATE KEY-----\n",
    "a PuTTY private key": "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n",
}


@pytest.mark.parametrize("why", KEYS)
def test_a_key_is_found(why: str) -> None:
    assert by_content(f"import os\n\n{KEYS[why]}\n".encode()) == why


@pytest.mark.parametrize(
    "text",
    [
        f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0F\n\n{BODY}\n",
        "-----BEGIN PRIVATE KEY-----\r\n" + BODY.replace("\n", "\r\n"),
        json.dumps({"type": "service_account", "private_key": f"-----BEGIN PRIVATE KEY-----\n{BODY}\n"}),
    ],
)
def test_a_private_key_is_found_in_every_wrapping(text: str) -> None:
    assert by_content(text.encode()) == "a private key"


def test_what_powershell_writes_is_read() -> None:
    assert by_content(KEYS["a RunPod API key"].encode("utf-16")) == "a RunPod API key"


@pytest.mark.parametrize(
    "text",
    [
        "RUNPOD_API_KEY=rpa_XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX",
        "RUNPOD_API_KEY=your-key-here",
        "hf_" + "x" * 34,
        "sk-" + "your-key-" * 8,
        "AWS: AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        f"AKIA{made_up(16, string.ascii_uppercase)} alone is an identifier, no secret",
        f"commit {made_up(40, HEX)}",
        f"sha256 {made_up(64, HEX)}",
        'if "-----BEGIN RSA PRIVATE KEY-----" in text: raise ValueError',
        f"-----BEGIN CERTIFICATE-----\n{BODY}\n",
        f"-----BEGIN PUBLIC KEY-----\n{BODY}\n",
        "task-" + made_up(60),
        "hf_hub_download(repo_id='a/b')",
        "aws_secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']",
    ],
)
def test_what_is_no_key_is_let_through(text: str) -> None:
    assert by_content(text.encode()) is None


def test_a_binary_file_holds_no_keys() -> None:
    assert by_content(b"\x7fELF\0\0" + KEYS["a GitHub token"].encode()) is None


@pytest.mark.parametrize("name", [".env", ".env.local", "sub/.env", ".env.production", ".env.example.local",
                                  ".netrc", ".aws/credentials", "kaggle.json", "deploy/id_ed25519"])  # fmt: skip
def test_held_by_name(name: str) -> None:
    assert by_name(name)


@pytest.mark.parametrize("name", [".env.example", ".env.sample", ".env.local.template", ".env.dist", "x.env", ".envrc",
                                  "id_ed25519.pub", "credentials", "netrc.py"])  # fmt: skip
def test_not_held_by_name(name: str) -> None:
    assert by_name(name) is None


def entries(folder: Path) -> list[FileEntry]:
    return [found for path in sorted(folder.iterdir()) if (found := entry(folder, path.name))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project whose files are an hour old, one of them with a token."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "a.py").write_text(KEYS["a GitHub token"])
    (made / "b.py").write_text("print()")
    for path in made.iterdir():
        os.utime(path, (time.time() - 3600,) * 2)
    return made


def test_files_are_read_once(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert find_keys(folder, entries(folder), cache) == {"a.py": "a GitHub token"}
    stamps = {path.name: path.stat() for path in folder.iterdir()}
    for path in folder.iterdir():  # other bytes, same size, time and inode: only the cache can still tell
        path.write_bytes(b"#" * path.stat().st_size)
        os.utime(path, ns=(stamps[path.name].st_mtime_ns,) * 2)
    assert find_keys(folder, entries(folder), cache) == {"a.py": "a GitHub token"}
    assert find_keys(folder, entries(folder), tmp_path / "other") == {}


def test_a_changed_file_is_read_again(folder: Path, tmp_path: Path) -> None:
    find_keys(folder, entries(folder), tmp_path)
    (folder / "b.py").write_text(KEYS["a RunPod API key"])
    assert find_keys(folder, entries(folder), tmp_path) == {"a.py": "a GitHub token", "b.py": "a RunPod API key"}


def test_a_fresh_file_is_not_cached(folder: Path, tmp_path: Path) -> None:
    (folder / "b.py").write_text("x" * 60)
    find_keys(folder, entries(folder), tmp_path)
    stamp = (folder / "b.py").stat().st_mtime_ns
    (folder / "b.py").write_text(f"ghp_{made_up(36)}".ljust(60))
    os.utime(folder / "b.py", ns=(stamp, stamp))
    assert "b.py" in find_keys(folder, entries(folder), tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": "old", "files": {}}'])
def test_a_torn_cache_is_no_obstacle(folder: Path, tmp_path: Path, text: str) -> None:
    find_keys(folder, entries(folder), tmp_path)
    store = next(tmp_path.glob("keys-*.json"))
    store.write_text(text)
    assert find_keys(folder, entries(folder), tmp_path) == {"a.py": "a GitHub token"}


def test_the_cache_holds_no_key(folder: Path, tmp_path: Path) -> None:
    find_keys(folder, entries(folder), tmp_path)
    assert "ghp_" not in next(tmp_path.glob("keys-*.json")).read_text()


def test_of_a_large_file_the_beginning_is_read(folder: Path, tmp_path: Path) -> None:
    (folder / "b.py").write_text(KEYS["a RunPod API key"] + "\n" + " " * LIMIT)
    (folder / "c.py").write_text(" " * LIMIT + "\n" + KEYS["a RunPod API key"])
    found = find_keys(folder, entries(folder), tmp_path)
    assert "b.py" in found
    assert "c.py" not in found
