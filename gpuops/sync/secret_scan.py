"""Which files hold keys and so must not leave this computer: judged by their name, their settings, their content.

The name decides where such a file practically always holds a secret. In files of settings, which may as well hold none
(`.npmrc` with `save-exact=true`, an `.envrc` that activates an environment), one value has to look like a secret.
The bytes of every other file are searched by the rules in keyrules.yml and those of the library kingfisher. Judgements
are cached by size, time and inode.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gpuops.core.errors import UsageError
from gpuops.core.files import write_atomic
from gpuops.core.parallel import on_each
from gpuops.sync.project_files import FileEntry

if TYPE_CHECKING:
    from kingfisher_sdk import Scanner


ENV_FILE = re.compile(r"\.env(\..+)?")
TEMPLATES = {"example", "sample", "template", "dist"}
"""`.env.example`, `.env.local.template`, `example.env`: templates to be filled in."""

CREDENTIAL_NAMES = {
    *(".netrc", "_netrc", ".git-credentials", ".pypirc", ".pgpass", "pgpass.conf", ".my.cnf", ".dockercfg", ".s3cfg"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk", ".vault-token", "rclone.conf"),
    *("kaggle.json", "application_default_credentials.json", "terraform.tfstate", ".databrickscfg", ".comet.config"),
    *(".modal.toml", ".vast_api_key", "vast_api_key"),
}
CREDENTIAL_PATHS = (
    ".aws/credentials",
    ".docker/config.json",
    ".kube/config",
    ".config/gh/hosts.yml",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".runpod/config.toml",
    ".lambda_cloud/lambda_keys",
    ".lambda_cloud/lambda_keys",
    ".ngc/config",
    "huggingface/token",
    "huggingface/stored_tokens",
)
"""Ends of paths, for names that alone say too little."""
CREDENTIAL_ENDINGS = (".ppk", ".p12", ".pfx", ".kdbx")
"""Containers of private keys, encrypted and so not searchable; `.pem` and `.key` are judged by content."""

SETTINGS_ENDINGS = (".env", ".envrc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".tfvars")
"""Ends of names of files that may hold secrets, one setting per line."""
SECRET_WORDS = {
    "key",
    "apikey",
    "token",
    "secret",
    "password",
    "passwd",
    "pass",
    "pwd",
    "credential",
    "credentials",
    "auth",
}
PLACEHOLDER = re.compile(r"example|placeholder|change_?me|your|x{4}|0{8}|\.\.\.|redacted|dummy", re.IGNORECASE)
HARMLESS_VALUE = re.compile(r"true|false|yes|no|none|null|\d{1,5}", re.IGNORECASE)
REFERENCE_PREFIXES = ("$", "<", "{", "%", "/", "~", "./", "../", "`", "op://")
"""A value that begins so names a variable, a command, a template, a path or an entry of a password manager."""
RULES = Path(__file__).with_name("keyrules.yml")
ENGINE = "kingfisher-secret-scanner"
ALGORITHM = 1
"""Increased when this module judges differently, which invalidates the cache."""
PIECE_BYTES = 512 << 10
"""Bytes that are searched at once."""
OVERLAP_BYTES = 32 << 10
"""Bytes of a piece that are searched again with the next: more than twice the longest private key."""
MAX_WHOLE_BYTES = 256_000_000
"""A larger file is a data set or a snapshot: half of this is searched at its beginning, half at its end."""
PIECE_TIMEOUT_S = 60.0
"""A piece that takes longer was crafted to; its file is held back."""
MIN_CACHED_AGE_NS = 2_000_000_000
"""A younger file may change again within the resolution of its time, so its judgement is not cached."""


def judge_name(path: str) -> str | None:
    """Why a file's name alone holds it back; None where it does not."""
    path = path.lower()
    name = path.rpartition("/")[2]
    if ENV_FILE.fullmatch(name) and not _is_template(name):
        return "a file of secrets by its name"
    has_known_path = f"/{path}".endswith(tuple(f"/{known}" for known in CREDENTIAL_PATHS))
    if has_known_path or name in CREDENTIAL_NAMES or name.endswith(CREDENTIAL_ENDINGS):
        return "a file of credentials by its name"
    return None


def judge_settings(path: str, data: bytes) -> str | None:
    """Why a file of settings is held back: one has a secret's name and a literal value. Else None."""
    name = path.lower().rpartition("/")[2]
    if not name.endswith(SETTINGS_ENDINGS) or _is_template(name):
        return None
    lines = data.decode("utf-8", "replace").splitlines()
    return "a file of settings with a secret" if any(_sets_secret(line) for line in lines) else None


def _is_template(name: str) -> bool:
    """Whether the last part of a name says template, or, where `env` is the last, an earlier one."""
    *earlier, last = name.split(".")
    return last in TEMPLATES or (last == "env" and not TEMPLATES.isdisjoint(earlier))


def _sets_secret(line: str) -> bool:
    """Whether a line is like `export DB_PASSWORD=hush`, `//registry/:_authToken=hush` or `npmAuthToken: hush`."""
    name, sign, value = line.partition("=") if "=" in line else line.partition(": ")
    value = value.strip().strip("'\"")
    if not sign or not value or line.lstrip().startswith(("#", ";")):
        return False
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip()).lower())
    is_literal = (
        not value.startswith(REFERENCE_PREFIXES)
        and not HARMLESS_VALUE.fullmatch(value)
        and not PLACEHOLDER.search(value)
    )
    return is_literal and not SECRET_WORDS.isdisjoint(words)


Judgements = dict[str, tuple[list[int], str | None]]
"""Path to ([size, mtime_ns, inode], reason or None)."""


def judge_content(data: bytes) -> str | None:
    """`a secret of the kind github-pat`: the most likely one in these bytes; None where there is none."""
    try:
        findings = _scanner().scan(data, timeout=PIECE_TIMEOUT_S)
    except TimeoutError:
        return "bytes that cannot be searched for keys in time"
    likely = [finding for finding in findings if finding.visible and finding.confidence != "low"]
    if not likely:
        return None
    likeliest = min(likely, key=lambda finding: finding.confidence != "high")
    return f"a secret of the kind {_rule_name(likeliest.rule_id)}"


def find_keys(folder: Path, files: Iterable[FileEntry], cache: Path) -> dict[str, str]:
    """Path to reason, for every file that holds a key. `cache`: the folder of the cached judgements.

    A file of the same size, time and inode as in the cache is not read again. Raises OSError for a file that cannot be
    read.
    """
    store = cache / f"keys-{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]}.json"
    cached = _load_cache(store)
    now = time.time_ns()  # as the file system counts, whatever clock a command has
    judged: Judgements = {}
    unjudged: list[str] = []
    reasons: dict[str, str] = {}
    for file in files:
        if why := judge_name(file.path):
            reasons[file.path] = why
        elif file.link is None and file.size:
            stamp = [file.size, file.mtime_ns, os.stat(f"{folder}/{file.path}").st_ino]
            last = cached.get(file.path)
            if last and last[0] == stamp:
                judged[file.path] = last
            else:
                judged[file.path] = (stamp, None)
                unjudged.append(file.path)
    for path, why in _search_files(folder, unjudged).items():
        judged[path] = (judged[path][0], why)
    reasons |= {path: why for path, (_, why) in judged.items() if why}
    kept = {path: judgement for path, judgement in judged.items() if now - judgement[0][1] > MIN_CACHED_AGE_NS}
    if kept != cached:
        _save_cache(store, kept)
    return reasons


def _search_files(folder: Path, paths: list[str]) -> dict[str, str | None]:
    """Path to reason or None. Files are searched in parallel: the library releases the interpreter lock."""
    if not paths:
        return {}
    _scanner()  # made once, before threads ask for it
    reasons: dict[str, str | None] = {}
    waiting = iter(paths)

    def search(_number: int) -> None:
        for path in waiting:  # each thread takes the next
            reasons[path] = _search_file(folder, path)

    on_each(search, range(os.cpu_count() or 1))
    return reasons


def _search_file(folder: Path, path: str) -> str | None:
    with open(f"{folder}/{path}", "rb") as file:
        pieces = _read_pieces(file)
        first = next(pieces, b"")
        why = judge_settings(path, first) or judge_content(first)
        return why or next((why for piece in pieces if (why := judge_content(piece))), None)


def _read_pieces(file: BinaryIO) -> Iterator[bytes]:
    """The pieces of a file that are searched. A byte order mark says UTF-16, which `>` in PowerShell writes."""
    size = os.fstat(file.fileno()).st_size
    is_utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    decoder = codecs.getincrementaldecoder("utf-16")("replace") if is_utf16 else None
    half = MAX_WHOLE_BYTES // 2
    for start, end in [(0, size)] if size <= MAX_WHOLE_BYTES else [(0, half), ((size - half) & ~1, size)]:
        file.seek(start)
        before = b""
        while data := file.read(min(PIECE_BYTES, end - file.tell())):
            piece = before + (decoder.decode(data).encode() if decoder else data)
            yield piece
            before = piece[-OVERLAP_BYTES:]


@cache
def _scanner() -> Scanner:
    """The search engine: loaded in half a second from its cache of compiled rules, in several seconds without it.
    Raises UsageError."""
    try:
        from kingfisher_sdk import Rules, Scanner
    except ImportError as error:  # no build for this system, such as a Mac with an Intel processor
        raise UsageError(
            f"files cannot be searched for keys on this computer: {ENGINE} is not installed",
            "install it; where it has no build, look yourself and send all as it is: --send-anyway '*'",
        ) from error
    return Scanner(Rules([RULES]), redact=True)


def _rule_name(rule: str) -> str:
    """`github-pat` for `betterleaks.github-pat`, `npm-key` for `veles.secrets/npm-key.1`."""
    return re.sub(r"^[a-z]+\.(secrets/)?|\.\d+$", "", rule)


@cache
def _cache_version() -> str:
    """A hash of everything that a judgement depends on."""
    return hashlib.sha256(f"{ALGORITHM} {version(ENGINE)} {RULES.read_text('utf-8')}".encode()).hexdigest()[:16]


def _load_cache(store: Path) -> Judgements:
    """The judgements of an earlier scan; empty without one, for other rules, and for a damaged file."""
    try:
        document = json.loads(store.read_text("utf-8"))
        files = document["files"] if document["version"] == _cache_version() else {}
        return {path: (stamp, why) for path, (stamp, why) in files.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _save_cache(store: Path, judged: Judgements) -> None:
    try:
        store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(store, json.dumps({"version": _cache_version(), "files": judged}).encode())
    except OSError:
        pass  # the next scan reads the files again
