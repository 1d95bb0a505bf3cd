"""Files of credentials, known by the names that programs give them.

A name alone counts where such a file practically always holds a secret. Where it may as well hold none
(`.npmrc` with `save-exact=true`, a `.envrc` that activates an environment), a setting has to look like one.
"""

from __future__ import annotations

import re

ENV_FILE = re.compile(r"\.env(\..+)?")
TEMPLATES = {"example", "sample", "template", "dist"}
"""`.env.example`, `.env.local.template`, `example.env`: files to be copied and filled in."""

NAMES = {
    *(".netrc", "_netrc", ".git-credentials", ".pypirc", ".pgpass", "pgpass.conf", ".my.cnf", ".dockercfg", ".s3cfg"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk", ".vault-token", "rclone.conf"),
    *("kaggle.json", "application_default_credentials.json", "terraform.tfstate", ".databrickscfg", ".comet.config"),
    *(".modal.toml", ".vast_api_key", "vast_api_key"),
}
PLACES = (
    ".aws/credentials",
    ".docker/config.json",
    ".kube/config",
    ".config/gh/hosts.yml",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".runpod/config.toml",
    ".lambda_cloud/lambda_keys",
    ".ngc/config",
    "huggingface/token",
    "huggingface/stored_tokens",
)
"""The ends of paths whose last part alone says too little."""
ENDINGS = (".ppk", ".p12", ".pfx", ".kdbx")
"""Containers of private keys that cannot be read without their password; `.pem` and `.key` are judged by content."""

SETTINGS = (".env", ".envrc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".tfvars")
"""The ends of names of files that may hold secrets, one setting per line."""
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
NO_SECRET = re.compile(r"true|false|yes|no|none|null|\d{1,5}", re.IGNORECASE)
NO_LITERAL = ("$", "<", "{", "%", "/", "~", "./", "../", "`", "op://")
"""How a value begins that names another variable, a command, a template, a path or an entry of a password safe."""


def by_name(path: str) -> str | None:
    """Why a file is held back for its name alone."""
    low = path.lower()
    name = low.rpartition("/")[2]
    if ENV_FILE.fullmatch(name) and not _is_template(name):
        return "a file of secrets by its name"
    places = f"/{low}".endswith(tuple(f"/{place}" for place in PLACES))
    return "a file of credentials by its name" if places or name in NAMES or name.endswith(ENDINGS) else None


def by_settings(path: str, data: bytes) -> str | None:
    """Why a file of settings is held back: the first one whose name says secret and whose value is written out."""
    name = path.lower().rpartition("/")[2]
    if not name.endswith(SETTINGS) or _is_template(name):
        return None
    lines = data.decode("utf-8", "replace").splitlines()
    return "a file of settings with a secret" if any(_is_secret(line) for line in lines) else None


def _is_template(name: str) -> bool:
    """A name that says so in its last part, or, where `env` is the last, in one before that."""
    *before, last = name.split(".")
    return last in TEMPLATES or (last == "env" and not TEMPLATES.isdisjoint(before))


def _is_secret(line: str) -> bool:
    """`export DB_PASSWORD=hush`, `//registry/:_authToken=hush`, `npmAuthToken: hush`; comments are not."""
    name, sign, value = line.partition("=") if "=" in line else line.partition(": ")
    value = value.strip().strip("'\"")
    if not sign or not value or line.lstrip().startswith(("#", ";")):
        return False
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip()).lower())
    literal = not value.startswith(NO_LITERAL) and not NO_SECRET.fullmatch(value) and not PLACEHOLDER.search(value)
    return literal and not SECRET_WORDS.isdisjoint(words)
