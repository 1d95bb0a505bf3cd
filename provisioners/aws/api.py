"""One call of AWS's, one answer or one of our errors; a region and its profile as one word.

A region is `us-east-1`, or `us-east-1@NAME` where the profile NAME gives the credentials: the profile travels with the
region into the ledger, so that a later command finds the same account.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuops.core.errors import GpuopsError
from provisioners.aws import errors

Document = Mapping[str, Any]
"""An answer of AWS's, or a part of one, as boto3 returns it. Whoever asked turns it into a type of ours."""

PROFILE = "gpuops_profile"
"""Attribute of a client: the profile whose credentials it uses, for errors to name."""


def split_region(region: str) -> tuple[str, str]:
    """A region's own name and its profile (empty: none)."""
    name, _, profile = region.partition("@")
    return name, profile


def join_region(name: str, profile: str) -> str:
    """The word that `split_region` takes apart."""
    return f"{name}@{profile}" if profile else name


def ask(doing: str, call: Callable[..., Any], *, creating: bool = False, client: Any = None, **parameters: Any) -> Any:
    """The answer of one call. Raises ProviderError.

    doing    what an error says was tried: `list machines in us-east-1`
    client   the client that is used, where `call` is not a method of it
    """
    try:
        return call(**parameters)
    except GpuopsError:
        raise
    except Exception as error:
        whose = client if client is not None else getattr(call, "__self__", None)
        region = str(getattr(getattr(whose, "meta", None), "region_name", "") or "")
        profile = str(getattr(whose, PROFILE, "") or parameters.get("profile") or "")
        raise errors.failure(error, doing, creating=creating, region=region, profile=profile) from error


def pages(doing: str, client: Any, operation: str, key: str, **parameters: Any) -> list[Any]:
    """What all pages of one call hold under `key`. Raises ProviderError."""

    def everything() -> list[Any]:
        found = client.get_paginator(operation).paginate(**parameters)
        return [one for page in found for one in page.get(key) or []]

    return list(ask(doing, everything, client=client))
