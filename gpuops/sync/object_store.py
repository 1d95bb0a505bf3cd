"""S3 requests of this computer: whose credentials, the client, one request, and its errors as gpuops' errors.

It knows nothing of runs: `bucket` decides which objects a run's sink has. boto3 is imported at the first request.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from gpuops.core.bucket import Bucket, DotenvPolicy
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, GpuopsError, NotSetUp, Unknown, UsageError
from gpuops.core.models import DOTENV
from gpuops.core.provider import Credential, credential
from gpuops.core.settings import with_keys

EXPIRATION_VARIABLE = "AWS_CREDENTIAL_EXPIRATION"
KEY_ID, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
NEEDED_KMS_ACTIONS = ("kms:GenerateDataKey", "kms:Decrypt")
KMS_DENIAL = re.compile(r"kms:[A-Za-z]+(?: on (?:the )?resource:? (arn:[\w:/-]+))?")
"""Matches an answer of S3 that denies the encryption key of a bucket with SSE-KMS; group 1: the key, where named."""
DENIED_CODES = ("AccessDenied", "403", "AllAccessDisabled")
WRONG_KEY_CODES = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthorizationHeaderMalformed")
EXPIRED_CODES = ("ExpiredToken", "RequestExpired")
REGIONAL_ADDRESSING = {"addressing_style": "virtual", "us_east_1_regional_endpoint": "regional"}
"""Otherwise boto3 signs for S3's global address, which redirects for a day after a bucket was made, and always in
regions of after March 2019 (boto3 #2187, #3015). Nodes follow no redirect."""
AMAZON_HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu")
ABSENT_CODES = ("404", "NoSuchKey", "NotFound", "NoSuchUpload")
EXPIRED_LOGIN_ERRORS = frozenset({"SSOError", "TokenRetrievalError", "NoAuthTokenError", "LoginError"})
UNREADABLE_KEY_ERRORS = frozenset(
    {"CredentialRetrievalError", "PartialCredentialsError", "RefreshWithMFAUnsupportedError"}
)
"""Names of botocore's errors for credentials it cannot read, raised at the first request rather than at login."""


class Absent(Unknown):
    """The object or upload does not exist."""


class Denied(AuthFailed):
    """These credentials may not do that in this bucket."""


def select_profile(env: Mapping[str, str], given: str = "") -> str:
    """The profile for requests to a bucket; empty for keys in the environment, or the default profile.

    `given`: the profile that the machines are rented with, used where the environment names none.
    """
    return "" if env.get("AWS_ACCESS_KEY_ID") else env.get("AWS_PROFILE", "").strip() or given


def _boto3(place: Bucket) -> Any:
    """The package. Raises NotSetUp."""
    try:
        import boto3
    except ImportError as error:
        raise NotSetUp(f"{place.flag} s3://… needs the package boto3", "pip install 'gpuops[aws]'") from error
    return boto3


def _session(ctx: Context, place: Bucket) -> tuple[Any, str]:
    """A boto3 session and the source of its credentials (`core.provider.credential`): what AWS's own tools find, but
    never this computer's own role. The profile or `.env` that the bucket was first used with goes before the
    environment, which may be another command's; a profile that no longer exists is ignored where the environment names
    another.

    Raises NotSetUp, UsageError, AuthFailed.
    """
    boto3 = _boto3(place)
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    env, profile = ctx.env, place.profile
    if place.dotenv is not DotenvPolicy.IGNORED:
        env = with_keys(ctx.env, ctx.dotenv, (KEY_ID, SECRET, TOKEN), insist=place.dotenv is DotenvPolicy.REQUIRED)

    session: Any = None

    def stored() -> Credential | None:
        nonlocal session
        session = boto3.Session(profile_name=profile or select_profile(env) or None)
        session._session.get_component("credential_provider").remove("iam-role")
        has_keys = session.get_credentials() is not None
        return Credential(session.profile_name, {}) if has_keys or session._session.profile else None

    try:
        keys = stored() if profile else credential(env, ctx.dotenv, (KEY_ID, SECRET), stored, (TOKEN,))
        if keys and keys.values:
            session = boto3.Session(
                aws_access_key_id=keys.values.get(KEY_ID),
                aws_secret_access_key=keys.values.get(SECRET),
                aws_session_token=keys.values.get(TOKEN),
            )
        has_keys = keys is not None and session.get_credentials() is not None
    except ProfileNotFound as error:
        if profile and (env.get("AWS_ACCESS_KEY_ID") or select_profile(env) not in ("", profile)):
            return _session(ctx, dataclasses.replace(place, profile=""))
        raise UsageError(str(error), "`aws configure list-profiles` shows what there is") from error
    except BotoCoreError as error:
        raise _credentials_error(error, place) from error
    if keys is None or not has_keys:
        raise NotSetUp(
            f"no AWS credentials are known, and {place.flag} s3://… needs some",
            "export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with AWS_PROFILE",
        )
    return session, keys.source


def uses_dotenv_keys(ctx: Context, place: Bucket) -> bool:
    """Whether the keys come from the project's `.env`. Raises NotSetUp, UsageError, AuthFailed."""
    return _session(ctx, place)[1] == DOTENV


def session_end(ctx: Context, place: Bucket) -> float | None:
    """When temporary credentials expire (UTC seconds); 0.0 where that is unknown, None for permanent ones.

    Raises NotSetUp, UsageError, AuthFailed.
    """
    credentials = _session(ctx, place)[0].get_credentials()
    from botocore.exceptions import BotoCoreError

    try:
        token = credentials.get_frozen_credentials().token  # some know their end only once they have been used
    except BotoCoreError as error:
        raise _credentials_error(error, place) from error
    expiry = getattr(credentials, "_expiry_time", None)
    if expiry is not None:
        return float(expiry.timestamp())
    if token and ctx.env.get(KEY_ID) == credentials.access_key:
        with suppress(ValueError):  # what `aws configure export-credentials --format env` writes, too
            return datetime.fromisoformat(ctx.env.get(EXPIRATION_VARIABLE, "")).timestamp()
    return 0.0 if token else None


def create_client(ctx: Context, place: Bucket, *, anonymous: bool = False) -> Any:
    """An S3 client for the bucket's region; `anonymous`: without keys, for a bucket that everybody may read.

    Raises NotSetUp, UsageError, AuthFailed.
    """
    session = _boto3(place).Session() if anonymous else _session(ctx, place)[0]
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    # Nodes that use a presigned URL send no checksums.
    checksums = {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
    endpoint = ctx.env.get("AWS_ENDPOINT_URL") or None
    region = place.region or session.region_name or "us-east-1"

    def client(**options: Any) -> Any:
        options |= {"signature_version": UNSIGNED if anonymous else "s3v4", "connect_timeout": 10, "read_timeout": 60}
        options |= {"retries": {"mode": "standard", "max_attempts": 4}}
        try:
            config = Config(**options, **checksums)
        except TypeError:
            config = Config(**options)  # botocore before 1.36 does not know these
        return session.client("s3", region_name=region, endpoint_url=endpoint, config=config)

    try:
        regional = client(s3=REGIONAL_ADDRESSING)
        return regional if amazon_region(regional) else client()  # another service may have no host per bucket
    except (BotoCoreError, ValueError) as error:  # a malformed endpoint or file of certificates
        raise UsageError(f"S3 cannot be asked: {error}", "check AWS_ENDPOINT_URL, and what AWS_… says else") from error


def amazon_region(s3: Any) -> str:
    """The region in which a client asks Amazon's own S3; empty where it asks another service."""
    host = urlsplit(s3.meta.endpoint_url).hostname or ""
    return str(s3.meta.region_name) if host.endswith(AMAZON_HOSTS) else ""


def call_s3(place: Bucket, action: str, call: Any, **parameters: Any) -> Any:
    """Send one request about a bucket; `action` names it in errors (`s3:GetObject`). Raises GpuopsError."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call(Bucket=place.bucket, **parameters)
    except (BotoCoreError, ClientError) as error:
        raise translate_error(error, place, action) from error


def bucket_region(s3: Any, place: Bucket) -> str:
    """The bucket's region: S3 returns it even when access is denied. Raises UsageError, ProviderError."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = s3.head_bucket(Bucket=place.bucket)
    except ClientError as error:
        answer = error.response
        code = str(answer.get("Error", {}).get("Code"))
        if code in ("404", "NoSuchBucket"):
            raise UsageError(f"there is no bucket {place.bucket}", place.absent_hint) from error
        if code in (*WRONG_KEY_CODES, *EXPIRED_CODES):
            raise translate_error(error, place, "s3:ListBucket") from error
    except BotoCoreError as error:
        raise translate_error(error, place, "s3:ListBucket") from error
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("x-amz-bucket-region") or s3.meta.region_name)


def translate_error(error: Exception, place: Bucket, action: str) -> GpuopsError:
    """The gpuops error for an error of botocore."""
    bucket = place.bucket
    response = getattr(error, "response", None) or {}
    code = str(response.get("Error", {}).get("Code", ""))
    if code == "NoSuchBucket":
        return UsageError(f"there is no bucket {bucket}", place.absent_hint)
    if code in ABSENT_CODES:
        return Absent(f"it is not in the bucket {bucket}")
    if code in DENIED_CODES:
        if key := KMS_DENIAL.search(str(response["Error"].get("Message"))):
            actions, arn = " and ".join(NEEDED_KMS_ACTIONS), key[1] or "the key of the bucket"
            return Denied(
                f"the bucket {bucket} is encrypted with a key that may not be used here ({key[0].split()[0]})",
                f"whoever administers the key allows {actions} on {arn}",
            )
        return Denied(f"the bucket {bucket} denies {action}", f"allow {place.grants}")
    if code in EXPIRED_CODES:
        return AuthFailed("the session of these AWS credentials has ended", _login_hint(place))
    if code in WRONG_KEY_CODES:
        return AuthFailed(f"AWS does not accept these credentials ({code})", "check AWS_ACCESS_KEY_ID and its secret")
    if code == "RequestTimeTooSkewed":
        return AuthFailed(
            "the clock of this computer is wrong by more than 15 minutes, says S3", "set it, then try again"
        )
    if code:
        return Unknown(f"the bucket {bucket} answers {code}: {response['Error'].get('Message', '')}", "try again")
    if _class_names(error) & (EXPIRED_LOGIN_ERRORS | UNREADABLE_KEY_ERRORS):
        return _credentials_error(error, place)
    return Unknown(f"the bucket {bucket} cannot be asked: {error}", "check the network, then try again")


def _credentials_error(error: Exception, place: Bucket) -> AuthFailed:
    """The error for credentials that cannot sign a request."""
    if _class_names(error) & EXPIRED_LOGIN_ERRORS:
        return AuthFailed(f"the login at AWS is over: {error}", _login_hint(place))
    return AuthFailed(f"AWS's credentials cannot be read: {error}", "see ~/.aws, or `aws sts get-caller-identity`")


def _login_hint(place: Bucket) -> str:
    """The hint with AWS's own login command."""
    profile = ["--profile", place.profile] if place.profile else []
    return f"sign in again ({shlex.join(['aws', 'sso', 'login', *profile])})"


def _class_names(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}
