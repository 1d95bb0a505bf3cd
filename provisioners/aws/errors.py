"""What AWS's failed answers mean, in our errors: one table by AWS's codes, one by botocore's exceptions. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from gpuops.core.errors import (
    AuthFailed,
    NoCapacity,
    NotSetUp,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Rejected,
    Unknown,
)
from gpuops.core.format import one_line
from provisioners.kit import error_table
from provisioners.kit.error_table import ANY, MAX_WORDS_CHARS, Row, because

LATER = "try again later, let it be tried for you (--wait 2h), or allow more: other types, --region A,B"
SPOT_QUOTA = "see what is missing, and request more: gpuops quota aws --spot"
QUOTA = "see what is missing, and request more: gpuops quota aws --on-demand"
PASS = (
    "allow iam:PassRole on the role that is in it, which gpuops policy aws leaves out, or leave out --instance-profile"
)
POLICY = "gpuops policy aws prints what gpuops needs; have whoever runs the account allow it"
KEYS = "look at who you are there: aws sts get-caller-identity"
SSO = "aws sso login"
LOGIN = f"log in again ({SSO}), or export fresh keys"
CLOCK = "set it right (sudo timedatectl set-ntp true), and try again"
AGAIN = "try again in a minute"
NO_VPC = "make one: aws ec2 create-default-vpc --region {region}; or name a subnet of your own: --subnet subnet-…"
SPOT_ROLE = "have it made once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"
OTHER = "change what is asked for: AWS would say no again"
FREE_PLAN = (
    "this AWS account is on the Free Plan, which starts few machines and none with a GPU, whatever its quotas are",
    "upgrade it to a paid plan in the AWS console: Billing, Account",
)
"""Accounts made since July 2025 may be on it, and are refused before their quota is looked at (field reports:
eks-workshop-v2 #1644)."""
NOT_FREE = re.compile(r"not eligible for (the )?Free Tier", re.IGNORECASE)
LOOK = "check its id, and --region"
LATELY = "if it was made a moment ago: try again"
MFA = (
    "the profile wants an MFA code, and it cannot be asked for here",
    'export keys for some hours: eval "$(aws configure export-credentials --profile NAME --format env)"',
)
NO_CRT = "pip install 'botocore[crt]', or export keys"
SKEWED = re.compile(r"^Signature (expired|not yet current)\b")
"""How AWS's words begin where a request's time is not AWS's; the codes are those of a wrong secret key."""
SLOWER = "wait, or run fewer commands at a time"
NETWORK = "check the network, try again"
NO_KEYS = "export AWS_ACCESS_KEY_ID=… and AWS_SECRET_ACCESS_KEY=… or put them into .env, or run: aws configure"

ANSWERED: tuple[Row, ...] = (
    # What AWS's words tell, whatever the code.
    Row((ANY,), AuthFailed, "this computer's clock is wrong, says AWS{why}", CLOCK, SKEWED),
    Row((ANY,), Rejected, *FREE_PLAN, NOT_FREE),
    # None to be had there now.
    Row(("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientCapacity", "UnfulfillableCapacity",
         "Server.InsufficientInstanceCapacity", "InsufficientVolumeCapacity", "InsufficientAddressCapacity",
         "ReservationCapacityExceeded"),
        NoCapacity, "AWS has none free there now", LATER),  # in its own words for each zone: a page for all of them
    Row(("SpotMaxPriceTooLow",), NoCapacity, "the spot price there is above the highest that was offered{why}", LATER),
    Row(("Unsupported", "InvalidFleetConfiguration"), NoCapacity, "AWS has no such machine in that zone{why}", LATER),
    Row(("InsufficientFreeAddressesInSubnet",), NoCapacity, "the subnet has no address left{why}",
        "end what uses them, or name another subnet: --subnet"),
    Row(("PendingVerification",), NoCapacity, "AWS still checks whether this account may use that region{why}",
        "wait: it takes minutes, at most four hours (--wait 4h tries as long)"),
    # What the account may not have.
    Row(("MaxSpotInstanceCountExceeded",), QuotaExceeded,
        "the account's quota of spot vCPUs in that region is too small, or used up{why}", SPOT_QUOTA),
    Row(("VcpuLimitExceeded",), QuotaExceeded,
        "the account's quota of on-demand vCPUs in that region is too small, or used up{why}", QUOTA),
    Row(("InstanceLimitExceeded",), QuotaExceeded, "the account may not have more machines in that region{why}",
        "wait some minutes if you have just ended some, else request more: gpuops quota aws --on-demand"),
    Row(("MaxSpotFleetRequestCountExceeded",), QuotaExceeded, "the account has too many spot requests{why}",
        SPOT_QUOTA),
    Row(("VolumeLimitExceeded",), QuotaExceeded, "the account may not have more disks in that region{why}",
        "delete volumes that nothing uses, or ask for less: --disk"),
    Row(("SecurityGroupLimitExceeded",), QuotaExceeded, "the account may not have more security groups there{why}",
        "delete some that nothing uses, or name one of yours: --security-group"),
    Row(("NetworkInterfaceLimitExceeded",), QuotaExceeded,
        "the account may not have more network interfaces there{why}",
        "end what uses them, or look in another region: --region"),
    Row(("QuotaExceededException",), QuotaExceeded, "the account has too many open requests for more quota{why}",
        "wait until AWS has decided them: gpuops quota aws --watch"),
    Row(("OptInRequired",), QuotaExceeded, "the account has not subscribed to that{why}",
        "switch the region on (AWS console, Account), or leave it out; a Marketplace image wants its terms accepted"),
    # Slower.
    Row(("RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled",
         "RequestThrottledException", "EC2ThrottledException", "TooManyRequestsException", "SlowDown"),
        RateLimited, "AWS wants fewer requests{why}", SLOWER),
    # It may have happened.
    Row(("InternalError", "InternalFailure", "ServerInternal", "ServiceUnavailable", "Unavailable", "RequestTimeout",
         "ServiceException"),
        Unknown, "AWS failed to {doing} ({code}){why}", AGAIN),
    Row(("IdempotentParameterMismatch",), Unknown, "AWS knows that request already, in another form{why}", AGAIN),
    # Who this is.
    Row(("AuthFailure.ServiceLinkedRoleCreationNotPermitted",), AuthFailed,
        "the account has never had a spot machine, and these credentials may not make the role that its first one "
        "needs",
        SPOT_ROLE),
    Row(("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId"), AuthFailed,
        "AWS does not accept the credentials, or the region is not switched on for them{why}", KEYS),
    Row(("SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignature"), AuthFailed,
        "AWS does not accept the signature of the credentials{why}", "check the secret key, and this computer's clock"),
    Row(("ExpiredToken", "ExpiredTokenException"), AuthFailed, "the AWS credentials have expired", LOGIN),
    Row(("RequestExpired",), AuthFailed, "the AWS credentials have expired, or this computer's clock is wrong{why}",
     f"{LOGIN}; and look at the clock: date -u"),
    Row(("Blocked",), AuthFailed, "AWS has blocked this account{why}",
        "write to its support: https://console.aws.amazon.com/support"),
    # What would be refused again.
    Row(("InvalidAMIID.NotFound",), Rejected, "the image (AMI) is not there in that region{why}",
        "ids of images differ by region: name one of that region with --ami, or leave --ami out"),
    Row(("InvalidAMIID.Unavailable",), Rejected, "the image (AMI) cannot be used any more{why}",
        "name another one with --ami, or leave --ami out"),
    Row(("InvalidAMIID.Malformed",), Rejected, "that is no id of an image (AMI){why}",
        "write it like --ami ami-0123456789abcdef0"),
    Row(("InvalidGroup.NotFound", "InvalidGroupId.Malformed", "InvalidGroupId.NotFound",
         "InvalidSecurityGroupID.NotFound"),
        Rejected, "the security group is not there{why}", f"{LOOK}; {LATELY}"),
    Row(("InvalidSubnetID.NotFound",), Rejected, "the subnet is not there{why}", f"{LOOK}; {LATELY}"),
    Row(("InvalidKeyPair.NotFound",), Rejected, "the key pair is not there{why}", f"{LOOK}; {LATELY}"),
    Row(("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"), Rejected, "the machine is not there{why}",
     f"{LOOK}; {LATELY}"),
    Row(("VPCIdNotSpecified", "MissingInput", "DefaultVpcDoesNotExist"), Rejected,
        "the account has no default network (VPC) in that region{why}", NO_VPC),
    Row(("InvalidPlacementGroup.Unknown",), Rejected, "the placement group is not there{why}", LOOK),
    Row(("InvalidPlacementGroup.Duplicate",), Rejected, "a placement group of that name is there already{why}", LOOK),
    Row(("InvalidPlacementGroup.InUse",), Rejected, "the placement group is still in use{why}", AGAIN),
    Row(("InvalidGroup.Duplicate",), Rejected, "a security group of that name is there already{why}",
        "end what is left of it: gpuops reap"),
    Row(("DependencyViolation", "InvalidGroup.InUse"), Rejected, "something still uses it{why}", AGAIN),
    Row(("InvalidParameterValue", "InvalidParameterCombination", "InvalidParameter", "MissingParameter",
         "InvalidInstanceType", "ValidationException", "ValidationError", "UnsupportedOperation"),
        Rejected, "AWS refuses to {doing}{why}", OTHER),
    # By status alone.
    Row(("HTTP 5xx",), Unknown, "AWS failed to {doing} ({code}){why}", AGAIN),
    Row(("HTTP 429",), RateLimited, "AWS wants fewer requests{why}", SLOWER),
    Row((ANY,), Rejected, "AWS refuses to {doing} ({code}){why}", OTHER),
)  # fmt: skip
"""`{why}`: AWS's words after a colon; `{code}`: AWS's code, else the status."""
UNANSWERED: tuple[Row, ...] = (
    Row(("NoCredentialsError",), NotSetUp, "there are no AWS credentials", NO_KEYS),
    Row(("ProfileNotFound",), AuthFailed, "AWS is not set up for that here{why}",
        "aws configure list-profiles shows what there is"),
    Row(("SSOError", "UnauthorizedSSOTokenError", "SSOTokenLoadError", "TokenRetrievalError", "LoginError",
         "NoAuthTokenError"),
        AuthFailed, "the login at AWS is over{why}", LOGIN),
    Row(("PartialCredentialsError", "CredentialRetrievalError", "InvalidConfigError", "ConfigParseError",
         "InfiniteLoopConfigError", "ConfigNotFound", "UnknownCredentialError"),
        AuthFailed, "the AWS credentials cannot be read{why}", "correct ~/.aws/config and ~/.aws/credentials"),
    Row(("MissingDependencyException",), AuthFailed,
        "these AWS credentials come from aws login, which needs the package awscrt", NO_CRT),
    Row(("RefreshWithMFAUnsupportedError",), AuthFailed, *MFA),
    Row(("SSLError",), Unknown, "the connection to AWS is not trusted{why}",
        "check this computer's clock, and its proxy"),
    Row(("ParamValidationError", "InvalidRegionError", "NoRegionError", "UnknownEndpointError"), Rejected,
        "AWS cannot be asked to {doing}{why}", "check what was asked for, and --region"),
    # The request may have been carried out.
    Row(("ResponseParserError",), Unknown,  # its own words quote the whole page
        "AWS did not answer to {doing}: what came is none of AWS's answers, or half of one (a proxy, or a network that "
        "wants a login?){maybe}", NETWORK),
    Row(("ConnectionError", "HTTPClientError", "OSError", "IncompleteReadError"), Unknown,
        "AWS did not answer to {doing}{why}{maybe}", NETWORK),
    Row((ANY,), Unknown, "AWS's answer to {doing} cannot be read: {kind}{why}", AGAIN),
)  # fmt: skip
"""By the names of an exception's classes: calls to which there was no answer of AWS's."""
PERMISSION_CODES = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
UNKNOWN_CALLER_CODES = frozenset({"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException"})
"""AWS, or a region of it, does not know who asks."""
ACTION = re.compile(r"perform:? (?:the )?([a-z0-9-]+:[A-Za-z*]+)")
ENCODED = re.compile(r"\s*(?:Encoded )?authorization failure message:.*", re.IGNORECASE | re.DOTALL)


def failure(
    error: BaseException, doing: str, *, creating: bool = False, region: str = "", profile: str = ""
) -> ProviderError:
    """The error of a call that failed. `doing`: `start machines in us-east-1`; `creating`: it costs money once done;
    `profile`: whose credentials they were."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and isinstance(response.get("Error"), dict):
        found = _answered(error, response, doing, region)
    else:
        found = _unanswered(error, doing, creating=creating)
    if profile:  # AWS's own command logs in to the default one, unless it is told
        found.hint = found.hint.replace(SSO, f"{SSO} --profile {shlex.quote(profile)}")
    return found


def code(error: BaseException | None) -> str:
    """AWS's own code, of its error or of ours that came from it; empty where there was no answer."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return str((response.get("Error") or {}).get("Code") or "")
    return code(error.__cause__) if error is not None and error.__cause__ is not None else ""


def lacks_permission(error: BaseException) -> bool:
    """Whether the credentials are good, and merely lack the permission for this."""
    return code(error) in PERMISSION_CODES


def is_closed_by_organization(error: BaseException | None) -> bool:
    """Whether an organization forbids this to its accounts, as most do with regions that they do not use."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        said = str((response.get("Error") or {}).get("Message") or "")
        return code(error) in PERMISSION_CODES and "explicit deny in a service control policy" in said
    return error is not None and error.__cause__ is not None and is_closed_by_organization(error.__cause__)


def _answered(error: BaseException, response: Mapping[str, Any], doing: str, region: str) -> ProviderError:
    named = str(response["Error"].get("Code") or "")
    said = _line(response["Error"].get("Message"))
    if named in PERMISSION_CODES:
        return _denied(error, said, doing)
    status = (response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
    names = {named, f"HTTP {status}", f"HTTP {str(status)[:1]}xx"}
    values = {"why": because(said), "code": named or f"HTTP {status}", "doing": doing, "region": region or "REGION"}
    return error_table.find(ANSWERED, names, said, values)


def _denied(error: BaseException, said: str, doing: str) -> AuthFailed:
    """A permission that is not there, by the name it has in a policy."""
    found = ACTION.search(said)
    operation = str(getattr(error, "operation_name", "") or "")
    action = found[1] if found else operation
    lacking = f"lack the permission {action}" if action else "lack a permission"
    if action == "iam:PassRole":
        return AuthFailed("these AWS credentials may not give machines that instance profile (iam:PassRole)", PASS)
    rule = " (something denies it: a policy of the account or its organization)" if "explicit deny" in said else ""
    return AuthFailed(f"these AWS credentials {lacking}, and cannot {doing}{rule}", POLICY)


def _unanswered(error: BaseException, doing: str, *, creating: bool) -> ProviderError:
    names = {kind.__name__ for kind in type(error).__mro__}
    said = _line(str(error))
    maybe = "; it may have happened" if creating else ""
    values = {"why": because(said), "doing": doing, "kind": type(error).__name__, "maybe": maybe}
    return error_table.find(UNANSWERED, names, said, values)


def _line(said: Any) -> str:
    """AWS's words as one line, without what only AWS can decode, and without a full stop."""
    return one_line(ENCODED.sub("", said) if isinstance(said, str) else "", MAX_WORDS_CHARS).rstrip(".")
