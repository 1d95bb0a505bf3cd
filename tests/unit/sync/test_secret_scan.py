"""Files of keys are known by name and by setting; what was searched is remembered. All keys here are made up."""

from __future__ import annotations

import json
import os
import random
import string
import time
from pathlib import Path

import pytest

from gpuops.sync import secret_scan
from gpuops.sync.project_files import FileEntry, read_entry
from gpuops.sync.secret_scan import find_keys, judge_name, judge_settings

LETTERS = string.ascii_letters + string.digits


def made_up(length: int, alphabet: str = LETTERS, seed: int = 7) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=length))


TOKEN = f"ghp_{made_up(36)}"
OTHER = f"rpa_{made_up(46, string.ascii_uppercase + string.digits)}"
GITHUB, RUNPOD = "a secret of the kind github-pat", "a secret of the kind runpod-api-key"


@pytest.mark.parametrize("name", [
    ".env", ".env.local", "sub/.env", ".env.production", ".env.example.local", ".ENV", ".netrc", "_netrc", ".pypirc",
    ".git-credentials", ".pgpass", ".aws/credentials", "home/.docker/config.json", ".kube/config",
    ".config/gh/hosts.yml",
    "kaggle.json", "deploy/id_ed25519", "ID_RSA", "x.ppk", "cert.p12", "rclone.conf", ".cache/huggingface/token",
    ".config/vastai/vast_api_key", ".runpod/config.toml", "infra/terraform.tfstate",
])  # fmt: skip
def test_held_by_name(name: str) -> None:
    assert judge_name(name)


@pytest.mark.parametrize("name", [
    ".env.example", ".env.sample", ".env.local.template", ".env.dist", "x.env", ".envrc", "id_ed25519.pub",
    "credentials", "netrc.py", ".npmrc", "cert.pem", "server.key", "config.json", ".docker/daemon.json", "docs/config",
    "token", "src/huggingface/token.py", "my.aws/credentials", "main.tf",
])  # fmt: skip
def test_not_held_by_name(name: str) -> None:
    assert judge_name(name) is None


@pytest.mark.parametrize(("name", "line"), [
    (".envrc", "export DB_PASSWORD=hush-hush"),
    ("prod.env", "SECRET='hush'"),
    ("deploy/prod.env", "API_KEY: hush"),
    (".npmrc", "//registry.example/:_authToken=hush"),
    (".npmrc", "_auth = aHVzaDpodXNo"),
    (".yarnrc.yml", "npmAuthToken: hush"),
    ("secret.tfvars", 'db_password = "hush"'),
])  # fmt: skip
def test_a_setting_that_is_a_secret_holds_its_file(name: str, line: str) -> None:
    assert judge_settings(name, f"# settings\nA=b\n{line}\n".encode()) == "a file of settings with a secret"
    assert judge_settings(f"{name}.txt", line.encode()) is None


@pytest.mark.parametrize("line", [
    "save-exact=true", "use flake", "layout python", "TOKENIZERS_PARALLELISM=false", "MAX_TOKENS=512", "PASSWORD=",
    "export API_KEY=$OTHER", "export API_KEY=${OTHER}", "API_KEY=<your key>", "API_KEY=changeme", "SSH_KEY=~/.ssh/id",
    "# PASSWORD=hush", "SECRET=`pass show it`", "TOKEN=op://safe/it", "KEYBOARD=us", "AUTH=none", "TOKEN_LIMIT=100",
    "PATH_add bin", "password", "=", "",
])  # fmt: skip
@pytest.mark.parametrize("name", [".envrc", "prod.env", ".npmrc"])
def test_a_setting_that_is_none_holds_no_file(name: str, line: str) -> None:
    assert judge_settings(name, line.encode()) is None


@pytest.mark.parametrize("name", ["example.env", "prod.sample.env", ".env.example"])
def test_a_file_to_be_filled_in_is_sent(name: str) -> None:
    assert judge_settings(name, b"PASSWORD=hush") is None


def entries(folder: Path) -> list[FileEntry]:
    return [found for path in sorted(folder.iterdir()) if (found := read_entry(folder, path.name))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project whose files are an hour old, one of them with a token."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "a.py").write_text(TOKEN)
    (made / "b.py").write_text("print()")
    for path in made.iterdir():
        os.utime(path, (time.time() - 3600,) * 2)
    return made


def test_files_are_read_once(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert find_keys(folder, entries(folder), cache) == {"a.py": GITHUB}
    stamps = {path.name: path.stat() for path in folder.iterdir()}
    for path in folder.iterdir():  # other bytes, same size, time and inode: only the cache can still tell
        path.write_bytes(b"#" * path.stat().st_size)
        os.utime(path, ns=(stamps[path.name].st_mtime_ns,) * 2)
    assert find_keys(folder, entries(folder), cache) == {"a.py": GITHUB}
    assert find_keys(folder, entries(folder), tmp_path / "other") == {}


def test_a_changed_file_is_read_again(folder: Path, tmp_path: Path) -> None:
    find_keys(folder, entries(folder), tmp_path)
    (folder / "b.py").write_text(OTHER)
    assert find_keys(folder, entries(folder), tmp_path) == {"a.py": GITHUB, "b.py": RUNPOD}


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
    assert find_keys(folder, entries(folder), tmp_path) == {"a.py": GITHUB}


def test_the_cache_holds_no_key(folder: Path, tmp_path: Path) -> None:
    find_keys(folder, entries(folder), tmp_path)
    assert "ghp_" not in next(tmp_path.glob("keys-*.json")).read_text()


def test_other_rules_find_anew(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_keys(folder, entries(folder), tmp_path)
    store = next(tmp_path.glob("keys-*.json"))
    document = json.loads(store.read_text())
    store.write_text(json.dumps({**document, "files": {path: [[0, 0, 0], None] for path in document["files"]}}))
    kept = json.loads(store.read_text())
    rules = tmp_path / "rules.yml"
    rules.write_text(secret_scan.RULES.read_text() + "# more\n")
    monkeypatch.setattr(secret_scan, "RULES", rules)
    secret_scan._cache_version.cache_clear()
    try:
        assert find_keys(folder, entries(folder), tmp_path) == {"a.py": GITHUB}
    finally:
        secret_scan._cache_version.cache_clear()
    assert json.loads(store.read_text())["version"] != kept["version"]


def test_what_is_remembered_needs_no_rules(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_keys(folder, entries(folder), tmp_path)
    monkeypatch.setattr(secret_scan, "_scanner", lambda: pytest.fail("the rules were loaded"))
    assert find_keys(folder, entries(folder), tmp_path) == {"a.py": GITHUB}


def test_of_a_huge_file_both_ends_are_searched(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_scan, "MAX_WHOLE_BYTES", 1 << 20)
    for name, at in (("start", 0), ("end", -len(TOKEN)), ("middle", 1 << 20)):
        data = bytearray(b" " * (2 << 20))
        data[at : at + len(TOKEN) or None] = TOKEN.encode()
        (folder / name).write_bytes(data)
    assert find_keys(folder, entries(folder), tmp_path).keys() == {"a.py", "start", "end"}


def test_what_takes_too_long_stays(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_scan, "PIECE_TIMEOUT_S", 1e-9)
    why = "bytes that cannot be searched for keys in time"
    assert find_keys(folder, entries(folder), tmp_path) == {"a.py": why, "b.py": why}
