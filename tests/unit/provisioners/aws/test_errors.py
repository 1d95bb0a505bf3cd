"""Each of AWS's codes: what it is for us, what a user reads, and what there is to do."""

from __future__ import annotations

import pytest
from botocore import exceptions as theirs
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

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
from provisioners.aws import errors
from provisioners.aws.api import ask

DOING = "start 2 x g5.12xlarge in us-east-1a"
ICE = (
    "We currently do not have sufficient g5.12xlarge capacity in the Availability Zone you requested (us-east-1a). Our "
    "system will be working on provisioning additional capacity."
)
NO_VPC = "make one: aws ec2 create-default-vpc --region us-east-1; or name a subnet of your own: --subnet subnet-…"
FREE = "AWS has none free there now"
THERE = "check its id, and --region; if it was made a moment ago: try again"
SLOWER = "wait, or run fewer commands at a time"
REFUSES = f"AWS refuses to {DOING}"
CREDENTIALS = "AWS does not accept the credentials, or the region is not switched on for them"
SIGNATURE = "AWS does not accept the signature of the credentials"
EXPIRED = "the AWS credentials have expired"
CASES: list[tuple[str, int, str, type[ProviderError], str, str]] = [
    ("InsufficientInstanceCapacity", 500, ICE, NoCapacity, FREE, errors.LATER),
    ("InsufficientHostCapacity", 500, "no host.", NoCapacity, FREE, errors.LATER),
    ("UnfulfillableCapacity", 400, "Unable to fulfill capacity due to your request configuration", NoCapacity,
     FREE, errors.LATER),
    ("InsufficientVolumeCapacity", 500, "no disks.", NoCapacity, FREE, errors.LATER),
    ("NetworkInterfaceLimitExceeded", 400, "", QuotaExceeded, "the account may not have more network interfaces there",
     "end what uses them, or look in another region: --region"),
    ("QuotaExceededException", 400, "", QuotaExceeded, "the account has too many open requests for more quota",
     "wait until AWS has decided them: gpuops quota aws --watch"),
    ("SpotMaxPriceTooLow", 400, "Your price is too low.", NoCapacity,
     "the spot price there is above the highest that was offered: Your price is too low", errors.LATER),
    ("Unsupported", 400, "Your requested instance type (p5.48xlarge) is not supported in us-east-1e.", NoCapacity,
     "AWS has no such machine in that zone: Your requested instance type (p5.48xlarge) is not supported in us-east-1e",
     errors.LATER),
    ("InvalidFleetConfiguration", 400, "", NoCapacity, "AWS has no such machine in that zone", errors.LATER),
    ("InsufficientFreeAddressesInSubnet", 400, "", NoCapacity, "the subnet has no address left",
     "end what uses them, or name another subnet: --subnet"),
    ("PendingVerification", 400, "Your request is being validated.", NoCapacity,
     "AWS still checks whether this account may use that region: Your request is being validated",
     "wait: it takes minutes, at most four hours (--wait 4h tries as long)"),
    ("MaxSpotInstanceCountExceeded", 400, "Max spot instance count exceeded", QuotaExceeded,
     "the account's quota of spot vCPUs in that region is too small, or used up: Max spot instance count exceeded",
     "see what is missing, and request more: gpuops quota aws --spot"),
    ("InsufficientAddressCapacity", 400, "Not enough available addresses.", NoCapacity,
     "AWS has none free there now", errors.LATER),
    ("ReservationCapacityExceeded", 400, "", NoCapacity, "AWS has none free there now", errors.LATER),
    ("VcpuLimitExceeded", 400, "Your current vCPU limit is 0.", QuotaExceeded,
     "the account's quota of on-demand vCPUs in that region is too small, or used up: Your current vCPU limit is 0",
     "see what is missing, and request more: gpuops quota aws --on-demand"),
    ("InstanceLimitExceeded", 400, "", QuotaExceeded, "the account may not have more machines in that region",
     "wait some minutes if you have just ended some, else request more: gpuops quota aws --on-demand"),
    ("MaxSpotFleetRequestCountExceeded", 400, "", QuotaExceeded, "the account has too many spot requests",
     errors.SPOT_QUOTA),
    ("VolumeLimitExceeded", 400, "", QuotaExceeded, "the account may not have more disks in that region",
     "delete volumes that nothing uses, or ask for less: --disk"),
    ("SecurityGroupLimitExceeded", 400, "", QuotaExceeded, "the account may not have more security groups there",
     "delete some that nothing uses, or name one of yours: --security-group"),
    ("OptInRequired", 401, "You are not subscribed to this service.", QuotaExceeded,
     "the account has not subscribed to that: You are not subscribed to this service",
     "switch the region on (AWS console, Account), or leave it out; a Marketplace image wants its terms accepted"),
    ("RequestLimitExceeded", 503, "Request limit exceeded.", RateLimited,
     "AWS wants fewer requests: Request limit exceeded", SLOWER),
    ("Throttling", 400, "Rate exceeded", RateLimited, "AWS wants fewer requests: Rate exceeded", SLOWER),
    ("TooManyRequestsException", 429, "", RateLimited, "AWS wants fewer requests", SLOWER),
    ("InternalError", 500, "An internal error has occurred", Unknown,
     f"AWS failed to {DOING} (InternalError): An internal error has occurred", errors.AGAIN),
    ("InternalFailure", 500, "", Unknown, f"AWS failed to {DOING} (InternalFailure)", errors.AGAIN),
    ("ServiceUnavailable", 503, "", Unknown, f"AWS failed to {DOING} (ServiceUnavailable)", errors.AGAIN),
    ("Unavailable", 503, "", Unknown, f"AWS failed to {DOING} (Unavailable)", errors.AGAIN),
    ("IdempotentParameterMismatch", 400, "", Unknown, "AWS knows that request already, in another form",
     errors.AGAIN),
    ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", 403, "whatever", AuthFailed,
     "the account has never had a spot machine, and these credentials may not make the role that its first one needs",
     "have it made once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"),
    ("AuthFailure", 401, "AWS was not able to validate the provided access credentials", AuthFailed,
     f"{CREDENTIALS}: AWS was not able to validate the provided access credentials", errors.KEYS),
    ("InvalidClientTokenId", 403, "", AuthFailed, CREDENTIALS, errors.KEYS),
    ("UnrecognizedClientException", 400, "", AuthFailed, CREDENTIALS, errors.KEYS),
    ("SignatureDoesNotMatch", 403, "", AuthFailed, SIGNATURE, "check the secret key, and this computer's clock"),
    ("SignatureDoesNotMatch", 403, "Signature expired: 1 is now earlier than 2.", AuthFailed,
     "this computer's clock is wrong, says AWS: Signature expired: 1 is now earlier than 2", errors.CLOCK),
    ("InvalidSignatureException", 400, "Signature not yet current: 2 is still later than 1.", AuthFailed,
     "this computer's clock is wrong, says AWS: Signature not yet current: 2 is still later than 1", errors.CLOCK),
    ("RequestExpired", 400, "Request has expired.", AuthFailed,
     "the AWS credentials have expired, or this computer's clock is wrong: Request has expired",
     f"{errors.LOGIN}; and look at the clock: date -u"),
    ("ExpiredToken", 403, "The security token included in the request is expired", AuthFailed, EXPIRED,
     errors.LOGIN),
    ("ExpiredTokenException", 400, "", AuthFailed, EXPIRED, errors.LOGIN),
    ("Blocked", 403, "This account is currently blocked.", AuthFailed,
     "AWS has blocked this account: This account is currently blocked",
     "write to its support: https://console.aws.amazon.com/support"),
    ("InvalidAMIID.NotFound", 400, "The image id '[ami-1]' does not exist", Rejected,
     "the image (AMI) is not there in that region: The image id '[ami-1]' does not exist",
     "ids of images differ by region: name one of that region with --ami, or leave --ami out"),
    ("InvalidAMIID.Unavailable", 400, "", Rejected, "the image (AMI) cannot be used any more",
     "name another one with --ami, or leave --ami out"),
    ("InvalidGroup.NotFound", 400, "", Rejected, "the security group is not there", THERE),
    ("InvalidGroupId.Malformed", 400, "", Rejected, "the security group is not there", THERE),
    ("InvalidSubnetID.NotFound", 400, "", Rejected, "the subnet is not there", THERE),
    ("InvalidKeyPair.NotFound", 400, "", Rejected, "the key pair is not there", THERE),
    ("InvalidInstanceID.NotFound", 400, "", Rejected, "the machine is not there", THERE),
    ("VPCIdNotSpecified", 400, "No default VPC for this user", Rejected,
     "the account has no default network (VPC) in that region: No default VPC for this user", NO_VPC),
    ("MissingInput", 400, "No subnets found for the default VPC", Rejected,
     "the account has no default network (VPC) in that region: No subnets found for the default VPC", NO_VPC),
    ("InvalidPlacementGroup.Unknown", 400, "", Rejected, "the placement group is not there", errors.LOOK),
    ("InvalidPlacementGroup.Duplicate", 400, "", Rejected, "a placement group of that name is there already",
     errors.LOOK),
    ("InvalidPlacementGroup.InUse", 400, "", Rejected, "the placement group is still in use", errors.AGAIN),
    ("InvalidGroup.Duplicate", 400, "", Rejected, "a security group of that name is there already",
     "end what is left of it: gpuops reap"),
    ("DependencyViolation", 400, "", Rejected, "something still uses it", errors.AGAIN),
    ("InvalidParameterValue", 400, "Invalid value 'x'.", Rejected, f"{REFUSES}: Invalid value 'x'", errors.OTHER),
    ("InvalidParameterCombination", 400, "", Rejected, REFUSES, errors.OTHER),
    ("InvalidParameterCombination", 400, "The specified instance type is not eligible for Free Tier. For a list of …",
     Rejected, errors.FREE_PLAN[0],
     "upgrade it to a paid plan in the AWS console: Billing, Account"),
    ("MissingParameter", 400, "", Rejected, REFUSES, errors.OTHER),
    ("NeverHeardOf", 400, "so it is", Rejected, f"{REFUSES} (NeverHeardOf): so it is", errors.OTHER),
    ("NeverHeardOf", 502, "", Unknown, f"AWS failed to {DOING} (NeverHeardOf)", errors.AGAIN),
]  # fmt: skip


def answered(code: str, status: int, message: str, operation: str = "RunInstances") -> ClientError:
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, operation)  # type: ignore[arg-type]


@pytest.mark.parametrize(("code", "status", "message", "kind", "say", "hint"), CASES, ids=lambda one: str(one)[:30])
def test_every_code_has_its_class_its_sentence_and_the_next_step(
    code: str, status: int, message: str, kind: type[ProviderError], say: str, hint: str
) -> None:
    found = errors.failure(answered(code, status, message), DOING, creating=True, region="us-east-1")
    assert (type(found), found.message, found.hint) == (kind, say, hint)


def test_a_permission_that_is_not_there_is_named_as_a_policy_names_it() -> None:
    said = (
        "You are not authorized to perform this operation. User: arn:aws:iam::1:user/x is not authorized to perform: "
        "ec2:CreateTags on resource: arn:aws:ec2:us-east-1:1:instance/* because no identity-based policy allows the "
        "ec2:CreateTags action. Encoded authorization failure message: AbCdEf"
    )
    found = errors.failure(answered("UnauthorizedOperation", 403, said), DOING)
    assert type(found) is AuthFailed
    assert found.message == f"these AWS credentials lack the permission ec2:CreateTags, and cannot {DOING}"
    assert found.hint == errors.POLICY


def test_a_permission_that_aws_does_not_name_is_that_of_the_request() -> None:
    said = "You are not authorized to perform this operation. Encoded authorization failure message: AbCdEf"
    found = errors.failure(answered("UnauthorizedOperation", 403, said), DOING)
    assert found.message == f"these AWS credentials lack the permission RunInstances, and cannot {DOING}"


def test_what_an_organization_denies_is_told_apart() -> None:
    said = "User: x is not authorized to perform: ec2:RunInstances with an explicit deny in a service control policy"
    found = errors.failure(answered("AccessDenied", 403, said), DOING)
    assert found.message.endswith(" (something denies it: a policy of the account or its organization)")


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (theirs.NoCredentialsError(), NotSetUp, "there are no AWS credentials"),
        (theirs.ProfileNotFound(profile="x"), AuthFailed, "AWS is not set up for that here: The config profile (x)"),
        (theirs.UnauthorizedSSOTokenError(), AuthFailed, "the login at AWS is over: "),
        (theirs.TokenRetrievalError(provider="sso", error_msg="gone"), AuthFailed, "the login at AWS is over: "),
        (theirs.PartialCredentialsError(provider="env", cred_var="x"), AuthFailed, "the AWS credentials cannot be"),
        (theirs.MissingDependencyException(msg="x"), AuthFailed, "these AWS credentials come from aws login, which"),
        (theirs.RefreshWithMFAUnsupportedError(), AuthFailed, "the profile wants an MFA code"),
        (theirs.SSLError(endpoint_url="u", error="bad"), Unknown, "the connection to AWS is not trusted: "),
        (theirs.ParamValidationError(report="no"), Rejected, f"AWS cannot be asked to {DOING}: "),
        (theirs.ConnectTimeoutError(endpoint_url="u"), Unknown, f"AWS did not answer to {DOING}: "),
        (theirs.ReadTimeoutError(endpoint_url="u"), Unknown, f"AWS did not answer to {DOING}: "),
        (theirs.EndpointConnectionError(endpoint_url="u"), Unknown, f"AWS did not answer to {DOING}: "),
        (theirs.ConnectionClosedError(endpoint_url="u"), Unknown, f"AWS did not answer to {DOING}: "),
        (ResponseParserError("not xml"), Unknown, f"AWS did not answer to {DOING}: "),
        (RuntimeError("odd"), Unknown, f"AWS's answer to {DOING} cannot be read: RuntimeError: odd"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_without_an_answer_nothing_is_certain(error: Exception, kind: type[ProviderError], says: str) -> None:
    found = errors.failure(error, DOING)
    assert type(found) is kind
    assert found.message.startswith(says)
    assert found.hint


def test_what_may_have_been_made_is_said() -> None:
    found = errors.failure(theirs.ReadTimeoutError(endpoint_url="u"), DOING, creating=True)
    assert found.message.endswith("; it may have happened")


def test_awss_own_code_is_known_behind_ours() -> None:
    def fails() -> None:
        raise answered("InvalidPermission.Duplicate", 400, "")

    with pytest.raises(Rejected) as caught:
        ask("open", fails)
    assert errors.code(caught.value) == "InvalidPermission.Duplicate"
    assert errors.code(Rejected("mine")) == ""


def test_a_long_or_odd_message_stays_one_line() -> None:
    found = errors.failure(answered("Odd", 400, "a\nb\x1b[31m" + "x" * 1000), DOING)
    assert "\n" not in found.message
    assert "\x1b" not in found.message
    assert len(found.message) < 400
