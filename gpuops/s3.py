"""S3 as this computer asks it: with whose keys, and its errors in our words. boto3 is imported when it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuops.errors import AuthFailed, GpuopsError, NotSetUp, Unknown, UsageError
from gpuops.world import World

NEEDED = ("s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
DENIED = ("AccessDenied", "403", "AllAccessDisabled")
WRONG = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthorizationHeaderMalformed")
OVER = ("ExpiredToken", "RequestExpired")
ABSENT = ("404", "NoSuchKey", "NotFound", "NoSuchUpload")


class Absent(Unknown):
    """There is no such thing in the bucket."""


class Denied(AuthFailed):
    """These keys may not do that there."""


def _session(world: World) -> Any:
    """Keys as AWS's own tools find them, but never this computer's own role. Raises NotSetUp, UsageError."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ProfileNotFound
    except ImportError as error:
        raise NotSetUp("--sink s3://… needs the package boto3", "pip install 'gpuops[aws]'") from error
    env = world.env
    try:
        if env.get("AWS_ACCESS_KEY_ID"):
            session = boto3.Session(
                aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=env.get("AWS_SECRET_ACCESS_KEY"),
                aws_session_token=env.get("AWS_SESSION_TOKEN"),
            )
        else:
            session = boto3.Session(profile_name=env.get("AWS_PROFILE") or None)
            session._session.get_component("credential_provider").remove("iam-role")
        found = session.get_credentials()
    except ProfileNotFound as error:
        raise UsageError(str(error), "name one of ~/.aws/config with AWS_PROFILE") from error
    except BotoCoreError as error:
        raise AuthFailed(
            f"AWS's credentials cannot be read: {error}", "see ~/.aws, or `aws sts get-caller-identity`"
        ) from error
    if found is None:
        raise NotSetUp(
            "no AWS credentials are known, and --sink s3://… needs some",
            "export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with AWS_PROFILE",
        )
    return session


def session_ends(world: World) -> float | None:
    """When temporary credentials end (UTC seconds), 0.0 where they do not say; None for lasting ones."""
    found = _session(world).get_credentials()
    ends = getattr(found, "_expiry_time", None)
    if ends is not None:
        return float(ends.timestamp())
    return 0.0 if found.get_frozen_credentials().token else None


def client(world: World, sink: Mapping[str, Any]) -> Any:
    session = _session(world)
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    common: dict[str, Any] = {"signature_version": "s3v4", "connect_timeout": 10, "read_timeout": 60}
    common["retries"] = {"mode": "standard", "max_attempts": 4}
    try:  # a signed address is used by who knows nothing of such sums
        config = Config(**common, request_checksum_calculation="when_required",
                        response_checksum_validation="when_required")  # fmt: skip
    except TypeError:
        config = Config(**common)  # before 1.36 there were none
    endpoint = world.env.get("AWS_ENDPOINT_URL") or None
    region = sink.get("region") or session.region_name or "us-east-1"
    try:
        return session.client("s3", region_name=region, endpoint_url=endpoint, config=config)
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
    if code in ABSENT:
        return Absent(f"it is not in the bucket {bucket}")
    if code in DENIED:
        where = f"arn:aws:s3:::{bucket}/{key_of(sink, '*')}"
        return Denied(f"the bucket {bucket} denies {action}", f"allow {', '.join(NEEDED)} on {where}")
    if code in OVER:
        return AuthFailed("the session of these AWS credentials has ended", "sign in again (aws sso login)")
    if code in WRONG:
        return AuthFailed(f"AWS does not accept these credentials ({code})", "check AWS_ACCESS_KEY_ID and its secret")
    if code:
        return Unknown(f"the bucket {bucket} answers {code}: {response['Error'].get('Message', '')}", "try again")
    return Unknown(f"the bucket {bucket} cannot be asked: {error}", "check the network, then try again")


def key_of(sink: Mapping[str, Any], name: str) -> str:
    return f"{sink['prefix']}/{name}" if sink.get("prefix") else name
