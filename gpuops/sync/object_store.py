"""S3 as this computer asks it: with whose keys, and its errors in our words. boto3 is imported when it is asked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, GpuopsError, NotSetUp, Unknown, UsageError
from gpuops.core.models import DOTENV
from gpuops.core.provider import Credential, credential
from gpuops.core.settings import with_keys

EXPIRATION_VARIABLE = "AWS_CREDENTIAL_EXPIRATION"
KEY_ID, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
NEEDED_ACTIONS = ("s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
NEEDED_KMS_ACTIONS = ("kms:GenerateDataKey", "kms:Decrypt")
KMS_DENIAL = re.compile(r"kms:[A-Za-z]+(?: on (?:the )?resource:? (arn:[\w:/-]+))?")
"""In S3's answer where what is denied is the key of a bucket with SSE-KMS; the resource where it says it."""
DENIED_CODES = ("AccessDenied", "403", "AllAccessDisabled")
WRONG_KEY_CODES = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthorizationHeaderMalformed")
EXPIRED_CODES = ("ExpiredToken", "RequestExpired")
REGIONAL_ADDRESSING = {"addressing_style": "virtual", "us_east_1_regional_endpoint": "regional"}
"""Otherwise boto3 signs for S3's global address, which sends who asks there elsewhere: for a day after a bucket was
made, and always where the region is of after March 2019 (boto3 #2187, #3015). Nodes follow nobody."""
AMAZON_HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu")
ABSENT_CODES = ("404", "NoSuchKey", "NotFound", "NoSuchUpload")
EXPIRED_LOGIN_ERRORS = frozenset({"SSOError", "TokenRetrievalError", "NoAuthTokenError", "LoginError"})
UNREADABLE_KEY_ERRORS = frozenset(
    {"CredentialRetrievalError", "PartialCredentialsError", "RefreshWithMFAUnsupportedError"}
)
"""What botocore raises where it cannot sign: mostly not before the first request."""


class Absent(Unknown):
    """There is no such thing in the bucket."""


class Denied(AuthFailed):
    """These keys may not do that there."""


def profile_of(env: Mapping[str, str], given: str = "") -> str:
    """The profile whose keys a bucket is asked with; empty: keys of the environment, or the default profile's.

    `given`: the one that the machines are rented with, for where the environment names nobody.
    """
    return "" if env.get("AWS_ACCESS_KEY_ID") else env.get("AWS_PROFILE", "").strip() or given


def _session(ctx: Context, sink: Mapping[str, Any]) -> tuple[Any, str]:
    """Keys by `gpuops.core.provider.credential`, and their source: what AWS's own tools find, but never this computer's
    own role. A profile that a sink was first asked with, or the project's `.env`, goes before the environment, which
    may be another command's; one that is no more leaves it to that.

    Raises NotSetUp, UsageError, AuthFailed.
    """
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ProfileNotFound
    except ImportError as error:
        raise NotSetUp("--sink s3://… needs the package boto3", "pip install 'gpuops[aws]'") from error
    dotenv = sink.get("dotenv")  # None: asked first when `.env` still went before AWS's own files
    env = ctx.env if dotenv is False else with_keys(ctx.env, ctx.dotenv, insist=bool(dotenv))
    profile = str(sink.get("profile") or "")

    session: Any = None

    def stored() -> Credential | None:
        nonlocal session
        session = boto3.Session(profile_name=profile or profile_of(env) or None)
        session._session.get_component("credential_provider").remove("iam-role")
        there = session.get_credentials() is not None
        return Credential(session.profile_name, {}) if there or session._session.profile else None

    try:
        found = stored() if profile else credential(env, ctx.dotenv, (KEY_ID, SECRET), stored, (TOKEN,))
        if found and found.values:
            session = boto3.Session(
                aws_access_key_id=found.values.get(KEY_ID),
                aws_secret_access_key=found.values.get(SECRET),
                aws_session_token=found.values.get(TOKEN),
            )
        there = found is not None and session.get_credentials() is not None
    except ProfileNotFound as error:
        if profile and (env.get("AWS_ACCESS_KEY_ID") or profile_of(env) not in ("", profile)):
            return _session(ctx, {**sink, "profile": ""})
        raise UsageError(str(error), "`aws configure list-profiles` shows what there is") from error
    except BotoCoreError as error:
        raise _unsigned(error, sink) from error
    if found is None or not there:
        raise NotSetUp(
            "no AWS credentials are known, and --sink s3://… needs some",
            "export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with AWS_PROFILE",
        )
    return session, found.source


def from_dotenv(ctx: Context, sink: Mapping[str, Any]) -> bool:
    """Whether the keys are those of the project's `.env`. Raises NotSetUp, UsageError, AuthFailed."""
    return _session(ctx, sink)[1] == DOTENV


def session_ends(ctx: Context, sink: Mapping[str, Any]) -> float | None:
    """When temporary credentials end (UTC seconds), 0.0 where they do not say; None for lasting ones.

    Raises NotSetUp, UsageError, AuthFailed.
    """
    found = _session(ctx, sink)[0].get_credentials()
    from botocore.exceptions import BotoCoreError

    try:
        token = found.get_frozen_credentials().token  # some are not there, nor know their end, before they are needed
    except BotoCoreError as error:
        raise _unsigned(error, sink) from error
    ends = getattr(found, "_expiry_time", None)
    if ends is not None:
        return float(ends.timestamp())
    if token and ctx.env.get(KEY_ID) == found.access_key:
        with suppress(ValueError):  # what `aws configure export-credentials --format env` writes, too
            return datetime.fromisoformat(ctx.env.get(EXPIRATION_VARIABLE, "")).timestamp()
    return 0.0 if token else None


def client(ctx: Context, sink: Mapping[str, Any]) -> Any:
    session, _ = _session(ctx, sink)
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    common: dict[str, Any] = {"signature_version": "s3v4", "connect_timeout": 10, "read_timeout": 60}
    common["retries"] = {"mode": "standard", "max_attempts": 4}
    # A signed address is used by who knows nothing of such sums.
    sums = {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
    endpoint = ctx.env.get("AWS_ENDPOINT_URL") or None
    region = sink.get("region") or session.region_name or "us-east-1"

    def made(**more: Any) -> Any:
        try:
            config = Config(**common, **sums, **more)
        except TypeError:
            config = Config(**common, **more)  # before 1.36 there were none
        return session.client("s3", region_name=region, endpoint_url=endpoint, config=config)

    try:
        found = made(s3=REGIONAL_ADDRESSING)
        host = urlsplit(found.meta.endpoint_url).hostname or ""
        return (
            found if host.endswith(AMAZON_HOSTS) else made()
        )  # others' names need not lead anywhere with a bucket's before
    except (BotoCoreError, ValueError) as error:  # an address or a file of certificates that is none
        raise UsageError(f"S3 cannot be asked: {error}", "check AWS_ENDPOINT_URL, and what AWS_… says else") from error


def ask(sink: Mapping[str, Any], action: str, call: Any, **parameters: Any) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call(Bucket=sink["bucket"], **parameters)
    except (BotoCoreError, ClientError) as error:
        raise failure(error, sink, action) from error


def failure(error: Exception, sink: Mapping[str, Any], action: str) -> GpuopsError:
    """What botocore says, in our words."""
    bucket = sink["bucket"]
    response = getattr(error, "response", None) or {}
    code = str(response.get("Error", {}).get("Code", ""))
    if code == "NoSuchBucket":
        return UsageError(f"there is no bucket {bucket}", f"make it (aws s3 mb s3://{bucket}), or name another")
    if code in ABSENT_CODES:
        return Absent(f"it is not in the bucket {bucket}")
    if code in DENIED_CODES:
        if key := KMS_DENIAL.search(str(response["Error"].get("Message"))):
            actions, arn = " and ".join(NEEDED_KMS_ACTIONS), key[1] or "the key of the bucket"
            return Denied(
                f"the bucket {bucket} is encrypted with a key that may not be used here ({key[0].split()[0]})",
                f"whoever administers the key allows {actions} on {arn}",
            )
        where = f"arn:*:s3:::{bucket}/{key_of(sink, '*')}"
        return Denied(f"the bucket {bucket} denies {action}", f"allow {', '.join(NEEDED_ACTIONS)} on {where}")
    if code in EXPIRED_CODES:
        return AuthFailed("the session of these AWS credentials has ended", _sign_in(sink))
    if code in WRONG_KEY_CODES:
        return AuthFailed(f"AWS does not accept these credentials ({code})", "check AWS_ACCESS_KEY_ID and its secret")
    if code:
        return Unknown(f"the bucket {bucket} answers {code}: {response['Error'].get('Message', '')}", "try again")
    if _kinds(error) & (EXPIRED_LOGIN_ERRORS | UNREADABLE_KEY_ERRORS):
        return _unsigned(error, sink)
    return Unknown(f"the bucket {bucket} cannot be asked: {error}", "check the network, then try again")


def _unsigned(error: Exception, sink: Mapping[str, Any]) -> AuthFailed:
    """Where there is nobody to ask as."""
    if _kinds(error) & EXPIRED_LOGIN_ERRORS:
        return AuthFailed(f"the login at AWS is over: {error}", _sign_in(sink))
    return AuthFailed(f"AWS's credentials cannot be read: {error}", "see ~/.aws, or `aws sts get-caller-identity`")


def _sign_in(sink: Mapping[str, Any]) -> str:
    """AWS's own command; of a profile it must be told."""
    profile = str(sink.get("profile") or "")
    return f"sign in again ({shlex.join(['aws', 'sso', 'login', *(['--profile', profile] if profile else [])])})"


def _kinds(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def key_of(sink: Mapping[str, Any], name: str) -> str:
    return f"{sink['prefix']}/{name}" if sink.get("prefix") else name
