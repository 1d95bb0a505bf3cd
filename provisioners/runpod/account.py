"""Which key, and where it may be sent: read from the surroundings, nothing is asked."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuops.core.errors import AuthFailed, NotSetUp, UsageError
from gpuops.core.models import Payer, Resource
from provisioners.base import NOTHING, Credential, credential

NAME = "RUNPOD_API_KEY"
API = "https://api.runpod.io/v2"
CONSOLE = "https://console.runpod.io/user/settings"
BILLING = "https://console.runpod.io/user/billing"
NO_KEY = f"make one at {CONSOLE} (API Keys), and export RUNPOD_API_KEY=… or put it into .env"


def key(env: Mapping[str, str], dotenv: Mapping[str, str] = NOTHING) -> str:
    """The API key itself, as `found` finds it."""
    return found(env, dotenv).values[NAME]


def found(env: Mapping[str, str], dotenv: Mapping[str, str] = NOTHING) -> Credential:
    """The API key: RUNPOD_API_KEY, else what RunPod's own tools have stored, else `.env`. Raises AuthFailed."""
    one = credential(env, dotenv, [NAME], lambda: _stored(env))
    if one is None:
        raise NotSetUp("there is no RunPod API key: RUNPOD_API_KEY is not set", NO_KEY)
    said = one.values[NAME]
    if not said.isascii() or not said.isprintable() or " " in said:
        raise AuthFailed("the RunPod API key is no key: it has characters that none has", NO_KEY)
    return one


def _stored(env: Mapping[str, str]) -> Credential | None:
    """`apiKey = "…"` is runpodctl's, `[default] api_key = "…"` that of RunPod's Python package. A file that cannot be
    read may hold the user's key, so that none behind it is taken. Raises AuthFailed."""
    try:
        path = Path(env.get("HOME") or Path.home()) / ".runpod" / "config.toml"
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, RuntimeError):  # no home is known, for one
        return None
    except (OSError, ValueError) as error:
        raise AuthFailed(f"{path} cannot be read, and RUNPOD_API_KEY is not set", NO_KEY) from error
    default = document.get("default")
    told = (document.get("apiKey"), default.get("api_key") if isinstance(default, dict) else None)
    secret = next((one.strip() for one in told if isinstance(one, str) and one.strip()), "")
    return Credential("~/.runpod/config.toml", {NAME: secret}) if secret else None


def fingerprint(secret: str) -> str:
    """What tells one key from another, and says nothing of it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:12]


def address(env: Mapping[str, str]) -> str:
    """Where the API is, without a slash at its end. Raises UsageError for what cannot be REST v2, or is not safe."""
    given = env.get("RUNPOD_API_URL", "").strip() or API
    found = _safe(given, "RUNPOD_API_URL")
    if not found.endswith("/v2"):
        raise UsageError(
            f"RUNPOD_API_URL is {given}, which is not RunPod's REST API v2", f"unset it, or end it in /v2: {API}"
        )
    return found


def graphql_base(env: Mapping[str, str]) -> str:
    """What RunPod's own package puts before `/graphql`: at the same place as the API, unless told otherwise."""
    given = env.get("RUNPOD_API_BASE_URL", "").strip()
    return _safe(given, "RUNPOD_API_BASE_URL") if given else address(env).removesuffix("/v2")


def _safe(given: str, name: str) -> str:
    """An address that a key may be sent to: by TLS, or not beyond this machine and its own network."""
    try:
        parts = urlsplit(given)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise UsageError(f"{name} is '{given}', which is no address of an API", f"unset it, or write it like {API}")
    if parts.scheme == "http" and not _near(host):
        raise UsageError(f"{name} is {given}: an API key would travel in clear", "write it with https://")
    return given.rstrip("/")


def _near(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return found.is_private or found.is_loopback


LIMIT_S = 20.0
FRESH_S = 10.0
"""So long an answer about money is still the present one."""
QUERIES = tuple(
    f"query {{ myself {{ id {email}clientBalance currentSpendPerHr spendLimit }} }}" for email in ("email ", "")
)
"""The second where a key may see the money and not the address."""
PROGRAM = """
import json, os, sys
given = json.load(sys.stdin)
os.environ["RUNPOD_API_BASE_URL"] = given["base"]
os.environ["RUNPOD_API_KEY"] = given["key"]
out = os.dup(1)
os.dup2(2, 1)
from runpod.api.graphql import run_graphql_query
from runpod.error import QueryError
for query in given["queries"]:
    try:
        answer = run_graphql_query(query, api_key=given["key"])
    except QueryError:
        continue
    os.write(out, json.dumps(answer).encode())
    break
"""


def ask(key: str, base: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """`id`, `email`, `balance`, `spend_per_hr`, `spend_limit` in $, those that are known. {} where nothing is."""
    hidden = {name: value for name, value in environ.items() if not name.startswith("RUNPOD_")}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROGRAM],
            input=json.dumps({"key": key, "base": base, "queries": QUERIES}),
            env=hidden,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        return read(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def read(answer: Any) -> dict[str, Any]:
    """GraphQL's answer as ours."""
    data = answer.get("data") if isinstance(answer, dict) else None
    myself = data.get("myself") if isinstance(data, dict) else None
    if not isinstance(myself, dict):
        return {}
    names = (("balance", "clientBalance"), ("spend_per_hr", "currentSpendPerHr"), ("spend_limit", "spendLimit"))
    found: dict[str, Any] = {name: str(myself[name]) for name in ("id", "email") if myself.get(name)}
    for ours, theirs in names:
        value = myself.get(theirs)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[ours] = float(value)
    return found


class Account:
    """The account of the key in these surroundings."""

    def __init__(self, env: Mapping[str, str], dotenv: Mapping[str, str] = NOTHING) -> None:
        self._env = env
        self._dotenv = dotenv
        self._lock = threading.Lock()
        self._told: tuple[float, dict[str, Any]] | None = None

    def payer(self, patience_s: float) -> Payer:
        """Whose key this is, as far as that is known by then. Raises AuthFailed."""
        source = found(self._env, self._dotenv).source
        if patience_s > 0 and self._told is None:
            asking = threading.Thread(target=self.told, daemon=True, name="payer")
            asking.start()
            asking.join(patience_s)
        known = self._told[1] if self._told else {}
        account = known.get("email") or (f"RunPod account {known['id']}" if known.get("id") else "")
        return Payer(str(account), source)

    def told(self, fresh_s: float = float("inf")) -> dict[str, Any]:
        """`id`, `email`, `balance`, `spend_per_hr`, `spend_limit`, those that are known; asked once, or when older than
        that."""
        with self._lock:
            if self._told is None or time.monotonic() - self._told[0] >= fresh_s:
                try:
                    found = ask(key(self._env, self._dotenv), graphql_base(self._env), self._env)
                except (AuthFailed, UsageError):
                    found = {}
                self._told = (time.monotonic(), found)
            return self._told[1]

    def marks(self) -> dict[str, str]:
        """What a resource keeps of it: the key's fingerprint, and the id where that was asked for before."""
        known = self._told[1] if self._told else {}
        return {"key": fingerprint(key(self._env, self._dotenv)), "id": str(known.get("id") or "")}

    def check(self, resource: Resource) -> None:
        """Raises AuthFailed where what RunPod does not find may be another account's, and go on there."""
        kept = resource.data.get("account")
        theirs = kept if isinstance(kept, dict) else {}
        if not theirs.get("key") or theirs["key"] == self.marks()["key"]:
            return
        if theirs.get("id") and theirs["id"] == str(self.told().get("id") or ""):
            return
        raise AuthFailed(
            f"{resource.name} was made with another API key, and this one does not see it",
            "use that key again: export RUNPOD_API_KEY=…",
        )
