"""Which key, and where it may be sent: read from the surroundings, nothing is asked."""

from __future__ import annotations

import hashlib
import ipaddress
import tomllib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gpuops.core.errors import AuthFailed, NotSetUp, UsageError
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
