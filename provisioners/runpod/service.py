"""RunPod's REST API v2: where its key lies, and the addresses that it may be sent to."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

from gpuops.core.errors import UsageError
from provisioners.kit.http_api import checked_url
from provisioners.kit.service import Service, StoredKey
from provisioners.runpod.errors import API, CONSOLE, ERRORS, read_words


class RunpodService(Service):
    @property
    def no_key(self) -> str:
        return super().no_key.replace(CONSOLE, f"{CONSOLE} (API Keys)")

    def find_address(self, env: Mapping[str, str]) -> str:
        """Raises UsageError also where it is not REST v2."""
        url = super().find_address(env)
        if not url.endswith("/v2"):
            raise UsageError(
                f"{self.address_variable} is {url}, which is not RunPod's REST API v2",
                f"unset it, or end it in /v2: {self.address}",
            )
        return url


def _find_key(text: str) -> str:
    """`apiKey = "…"` is runpodctl's, `[default] api_key = "…"` that of RunPod's Python package. Raises ValueError."""
    document = tomllib.loads(text)
    default = document.get("default")
    entries = (document.get("apiKey"), default.get("api_key") if isinstance(default, dict) else None)
    return next((one.strip() for one in entries if isinstance(one, str) and one.strip()), "")


SERVICE = RunpodService(
    name="RunPod",
    address=API,
    address_variable="RUNPOD_API_URL",
    key_variable="RUNPOD_API_KEY",
    keys_page=CONSOLE,
    errors=ERRORS,
    read_words=read_words,
    stored_keys=(StoredKey("~/.runpod/config.toml", _find_key),),
)


def graphql_base(env: Mapping[str, str]) -> str:
    """What stands before `/graphql`: RUNPOD_API_BASE_URL, as RunPod's own package reads it, else the API's host."""
    given = env.get("RUNPOD_API_BASE_URL", "").strip()
    if given:
        return checked_url(given, "RUNPOD_API_BASE_URL", API, "an API key")
    return SERVICE.find_address(env).removesuffix("/v2")
