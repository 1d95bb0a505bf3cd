"""RunPod's API key, and the addresses it may be sent to: read from the environment and files, without a request."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from gpuops.core.errors import AuthFailed, UsageError
from provisioners.base import NOTHING, Credential, credential
from provisioners.kit.api_key import checked_key
from provisioners.kit.http_api import checked_url

VARIABLE = "RUNPOD_API_KEY"
API = "https://api.runpod.io/v2"
CONSOLE = "https://console.runpod.io/user/settings"
BILLING = "https://console.runpod.io/user/billing"
NO_KEY = f"make one at {CONSOLE} (API Keys), and export RUNPOD_API_KEY=… or put it into .env"


def key(env: Mapping[str, str], dotenv: Mapping[str, str] = NOTHING) -> str:
    """The API key itself, as `find` finds it."""
    return find(env, dotenv).values[VARIABLE]


def find(env: Mapping[str, str], dotenv: Mapping[str, str] = NOTHING) -> Credential:
    """The API key: RUNPOD_API_KEY, else what RunPod's own tools have stored, else `.env`. Raises AuthFailed."""
    found = credential(env, dotenv, [VARIABLE], lambda: _stored(env))
    return checked_key(found, VARIABLE, "RunPod", NO_KEY)


def _stored(env: Mapping[str, str]) -> Credential | None:
    """`apiKey = "…"` is runpodctl's, `[default] api_key = "…"` that of RunPod's Python package.

    A file that cannot be read may hold the user's key, so the search ends there. Raises AuthFailed.
    """
    try:
        path = Path(env.get("HOME") or Path.home()) / ".runpod" / "config.toml"
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, RuntimeError):  # RuntimeError: no home directory is known
        return None
    except (OSError, ValueError) as error:
        raise AuthFailed(f"{path} cannot be read, and RUNPOD_API_KEY is not set", NO_KEY) from error
    default = document.get("default")
    entries = (document.get("apiKey"), default.get("api_key") if isinstance(default, dict) else None)
    secret = next((one.strip() for one in entries if isinstance(one, str) and one.strip()), "")
    return Credential("~/.runpod/config.toml", {VARIABLE: secret}) if secret else None


def address(env: Mapping[str, str]) -> str:
    """The API's address, without a slash at its end. Raises UsageError where it is not REST v2, or not safe."""
    given = env.get("RUNPOD_API_URL", "").strip() or API
    url = _checked(given, "RUNPOD_API_URL")
    if not url.endswith("/v2"):
        raise UsageError(
            f"RUNPOD_API_URL is {given}, which is not RunPod's REST API v2", f"unset it, or end it in /v2: {API}"
        )
    return url


def graphql_base(env: Mapping[str, str]) -> str:
    """What stands before `/graphql`: RUNPOD_API_BASE_URL, as RunPod's own package reads it, else the API's host."""
    given = env.get("RUNPOD_API_BASE_URL", "").strip()
    return _checked(given, "RUNPOD_API_BASE_URL") if given else address(env).removesuffix("/v2")


def _checked(url: str, variable: str) -> str:
    return checked_url(url, variable, API, "an API key")
