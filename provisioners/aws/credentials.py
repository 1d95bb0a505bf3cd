"""Credentials as AWS's own tools find them, and the address they are for. boto3 is imported where it is used."""

from __future__ import annotations

import getpass
import importlib.util
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gpuops.core.errors import AuthFailed, NotSetUp
from gpuops.core.models import DOTENV
from provisioners.aws.errors import MFA, NO_KEYS
from provisioners.base import NOTHING, Credential, credential
from provisioners.kit.http_api import checked_url

NO_BOTO3 = ("AWS needs the package boto3", "pip install 'gpuops[aws]'")
KEY_ID, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
EXCLUDED_METHODS = ("env", "iam-role", "boto-config", "ec2-credentials-file")
"""Ways of botocore's that are not used: this process's environment (ours is given), the computer as an instance, the
files of boto 2.

The role of a computer that is itself an instance is nobody's choice of an account. That of a container is: its address
stands in an exported variable, so that it goes before `.env` as whatever else botocore finds does."""
EXPORTED_METHODS = ("container-role", "assume-role-with-web-identity")
PARTITIONS = ("aws", "aws-us-gov", "aws-cn")


def session(env: Mapping[str, str], profile: str, dotenv: Mapping[str, str] = NOTHING) -> tuple[Any, str]:
    """A session and the source of its credentials: those of a profile; without one, the first there are by
    `gpuops.core.provider.credential`. Raises NotSetUp, AuthFailed."""
    require_boto3()
    import boto3

    core = _core(env, profile or current_profile(env))
    found = _stored(core) if profile else credential(env, dotenv, (KEY_ID, SECRET), lambda: _stored(core), (TOKEN,))
    if found is None:
        raise NotSetUp("there are no AWS credentials", NO_KEYS)
    if found.values:
        if lacking := [name for name in (KEY_ID, SECRET) if name not in found.values]:
            theirs = found.source == DOTENV
            half = next(iter(found.values)) + (f" in {DOTENV}" if theirs else "")
            raise AuthFailed(
                f"{half} is set, and {lacking[0]}, the other half of the AWS credentials, is not",
                f"put {lacking[0]}=… into {DOTENV}, too" if theirs else f"export {lacking[0]}=… too",
            )
        core.set_credentials(found.values[KEY_ID], found.values[SECRET], found.values.get(TOKEN))
    return boto3.Session(botocore_session=core), found.source


def _stored(core: Any) -> Credential | None:
    """What AWS's own tools find, which know how to use it: nothing of it is shown here. A profile that was named and
    has none is no reason to take others."""
    name = core.get_config_variable("profile")
    found = core.get_credentials()
    if found is None and name:
        raise NotSetUp(f"there are no AWS credentials in the profile {name}", NO_KEYS)
    if found is None:
        return None
    exported = found.method in EXPORTED_METHODS and not name
    return Credential(f"this environment ({found.method})" if exported else f"profile {name or 'default'}", {})


def current_profile(env: Mapping[str, str]) -> str:
    """AWS_PROFILE where it counts: keys in the environment go before it."""
    return "" if has_keys(env) else env.get("AWS_PROFILE", "").strip()


def has_keys(env: Mapping[str, str]) -> bool:
    return all(env.get(name, "").strip() for name in (KEY_ID, SECRET))


def require_boto3() -> None:
    """Raises NotSetUp where boto3 is not installed."""
    if importlib.util.find_spec("boto3") is None:
        raise NotSetUp(*NO_BOTO3)


@cache
def known_regions() -> tuple[str, ...]:
    """Every region that the installed botocore knows; nothing is asked, and no credentials are needed."""
    require_boto3()
    import botocore.session

    none = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None))
    core = botocore.session.Session(session_vars={"profile": (None, None, None, None), **none})  # reads no user's files
    return tuple(sorted(region for part in PARTITIONS for region in core.get_available_regions("ec2", part)))


def _core(env: Mapping[str, str], profile: str) -> Any:
    """Looks into the user's files, and never asks whether this computer is an instance itself."""
    import botocore.credentials
    import botocore.session

    core = botocore.session.Session(profile=profile or None)
    folder = Path(env.get("HOME") or Path.home()) / ".aws"
    files = (
        ("config_file", "AWS_CONFIG_FILE", "config"),
        ("credentials_file", "AWS_SHARED_CREDENTIALS_FILE", "credentials"),
    )
    for name, variable, file in files:
        core.set_config_variable(name, env.get(variable) or str(folder / file))
    finder = botocore.credentials.create_credential_resolver(core)
    for method in [one.METHOD for one in finder.providers if one.METHOD in EXCLUDED_METHODS]:
        finder.remove(method)
    for role in [one for one in finder.providers if one.METHOD == "assume-role"]:
        role._prompter = _mfa
    core.register_component("credential_provider", finder)
    return core


def _mfa(question: str) -> str:
    """The code that a profile with MFA wants. Raises AuthFailed without a terminal."""
    if not sys.stdin or not sys.stdin.isatty():
        raise AuthFailed(*MFA)
    return getpass.getpass(question)


def endpoint(env: Mapping[str, str]) -> str | None:
    """AWS_ENDPOINT_URL, for every service; None: AWS itself. Raises UsageError for one that is not safe."""
    given = env.get("AWS_ENDPOINT_URL", "").strip()
    if not given:
        return None
    return checked_url(given, "AWS_ENDPOINT_URL", "https://vpce-example.amazonaws.com", "keys of machines")
