"""Who may ask at all, and for what: keys, regions, permissions; each refused in the words of its service."""

from __future__ import annotations

from fnmatch import fnmatchcase

from tests.fakes.aws.requests import Refusal, Request, Unreachable
from tests.fakes.aws.wire import JSON

NOT_VALIDATED = "AWS was not able to validate the provided access credentials"
INVALID = "The security token included in the request is invalid."


def unknown_key(request: Request) -> Refusal:
    if request.service == "ec2":
        return Refusal("AuthFailure", NOT_VALIDATED, 401)
    if request.service in JSON:
        return Refusal("UnrecognizedClientException", INVALID, 400)
    if request.service == "s3":
        return Refusal("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.", 403)
    return Refusal("InvalidClientTokenId", INVALID, 403)


def nobody(request: Request) -> Refusal:
    """Not signed at all."""
    if request.service == "s3":
        return Refusal("AccessDenied", "Access Denied", 403)
    return Refusal("MissingAuthenticationToken", "Request is missing Authentication Token", 403)


def expired(request: Request) -> Refusal:
    if request.service == "ec2":
        return Refusal("RequestExpired", "Request has expired.", 400)
    if request.service in JSON:
        return Refusal("ExpiredTokenException", "The security token included in the request is expired", 400)
    if request.service == "s3":
        return Refusal("ExpiredToken", "The provided token has expired.", 400)
    return Refusal("ExpiredToken", "The security token included in the request is expired", 403)


def wrong_signature(request: Request) -> Refusal:
    if request.service == "ec2":
        return Refusal("AuthFailure", NOT_VALIDATED, 401)
    said = "The request signature we calculated does not match the signature you provided."
    if request.service in JSON:
        return Refusal("InvalidSignatureException", said, 400)
    return Refusal("SignatureDoesNotMatch", said, 403)


def denied(request: Request, arn: str, permission: str) -> Refusal:
    said = (
        f"User: {arn} is not authorized to perform: {permission} because no identity-based policy allows the "
        f"{permission} action"
    )
    if request.service == "ec2":
        encoded = " Encoded authorization failure message: Vy7xJb2kq" if request.action == "RunInstances" else ""
        return Refusal(
            "UnauthorizedOperation", f"You are not authorized to perform this operation. {said}.{encoded}", 403
        )
    if request.service in JSON:
        return Refusal("AccessDeniedException", said, 400)
    return Refusal("AccessDenied", said, 403)


def missing_permission(request: Request, forbidden: set[str]) -> str:
    """The permission that is lacking for it: its own, or the one for the tags that it makes; "": none."""
    needed = [request.permission]
    if request.service == "ec2" and request.parameters.get("TagSpecifications"):
        needed.append("ec2:CreateTags")
    if request.parameters.get("IamInstanceProfile"):
        needed.append("iam:PassRole")
    for one in needed:
        if any(fnmatchcase(one.lower(), pattern.lower()) for pattern in forbidden):
            return one
    return ""


def in_closed_region(request: Request) -> Exception:
    """A region that the account did not ask for knows no keys of it."""
    return Unreachable() if request.service == "s3" else unknown_key(request)
