"""The environment variables by which each provider knows an account: those of our own providers, and their form.

A provisioner declares them as `credentials` and `surroundings`. Ours refer to `OURS`, which is here so that a project's
`.env` can be read without importing a provider; those of other wheels are found by `provisioners.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class AccountVariables:
    """Names of variables, as a provisioner declares them."""

    credentials: tuple[str, ...] = ()
    """Keys to one account, used together or not at all. A project's `.env` may hold them."""
    surroundings: tuple[str, ...] = ()
    """They choose an account or an address, and are no secret. Only the real environment may set them."""


OURS: Mapping[str, AccountVariables] = {
    "local": AccountVariables(),
    "ssh": AccountVariables(),
    "slurm": AccountVariables(),
    "pbs": AccountVariables(),
    "runpod": AccountVariables(("RUNPOD_API_KEY",), ("RUNPOD_API_URL", "RUNPOD_API_BASE_URL")),
    "vast": AccountVariables(("VAST_API_KEY",), ("VAST_URL",)),
    "aws": AccountVariables(
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL"),
    ),
}
