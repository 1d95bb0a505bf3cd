"""What goes wrong with a request, as data.

    fake.play(Fault("RunInstances", what="lost"), Fault("ec2:Describe*", nth=2, times=3, what="throttle"))

what        done?  what is heard
500         no     InternalError, HTTP 500
broken      yes    the same
503         no     ServiceUnavailable
throttle    no     RequestLimitExceeded (EC2), TooManyRequestsException, ThrottlingException, Throttling, SlowDown
denied      no     UnauthorizedOperation, AccessDeniedException, AccessDenied
capacity    no     InsufficientInstanceCapacity, HTTP 500
lost        yes    nothing: the connection ends
cut         no     the same
silent      yes    nothing for `hang_s`, and then the connection ends
timeout     no     the same
slow        yes    the right answer after `hang_s`
garbage     no     HTTP 200 and a page of a hotel's network
half        yes    the first half of the right answer, and the connection ends
code        no     `code`, `message` and `http` as they are given here
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tests.fakes.aws import checks
from tests.fakes.aws.requests import Answer, Refusal, Request
from tests.fakes.aws.wire import JSON

WHATS = (
    "500", "broken", "503", "throttle", "denied", "capacity", "lost", "cut", "silent", "timeout", "slow", "garbage",
    "half", "code",
)  # fmt: skip
DONE = ("broken", "lost", "silent", "slow", "half")
"""What is asked for is done all the same."""
CUT = ("lost", "cut", "silent", "timeout")
GARBAGE = b"<html><head><title>Welcome to Hotel Wi-Fi</title></head><body>Please <b>log in & accept</body></html>"


@dataclass(frozen=True)
class Fault:
    """What the `nth` request that fits meets, and as many after it as `times` says (None: all)."""

    action: str
    """`RunInstances`, `ec2:RunInstances`, `s3:*`."""
    nth: int = 1
    times: int | None = 1
    what: str = "500"
    region: str = ""
    """Only requests in this region,"""
    zone: str = ""
    """only RunInstances in this zone,"""
    type: str = ""
    """only RunInstances of this type."""
    code: str = ""
    message: str = "An error of the fake's."
    http: int = 400
    hang_s: float = 20.0

    def __post_init__(self) -> None:
        assert self.what in WHATS, self.what

    def fits(self, request: Request, zone: str = "") -> bool:
        """`zone`: of the subnet that it names."""
        pattern = self.action if ":" in self.action else f"*:{self.action}"
        return (
            fnmatchcase(request.permission, pattern)
            and self.region in ("", request.region)
            and self.zone in ("", zone)
            and self.type in ("", request.parameters.get("InstanceType", ""))
        )

    @property
    def done(self) -> bool:
        return self.what in DONE

    @property
    def cuts(self) -> bool:
        return self.what in CUT

    @property
    def hangs(self) -> float:
        return self.hang_s if self.what in ("silent", "timeout", "slow") else 0.0

    def refusal(self, request: Request, arn: str) -> Refusal | None:
        """What is answered instead of what is right."""
        match self.what:
            case "500" | "broken":
                return Refusal(_inside(request), "An internal error has occurred", 500)
            case "503":
                return Refusal("ServiceUnavailable", "The request failed due to a temporary failure.", 503)
            case "throttle":
                return throttled(request)
            case "denied":
                return checks.denied(request, arn, request.permission)
            case "capacity":
                return Refusal("InsufficientInstanceCapacity", "There is no Spot capacity available.", 500)
            case "code":
                return Refusal(self.code, self.message, self.http)
        return None

    def spoil(self, right: Answer) -> Answer:
        """What becomes of an answer that is right."""
        if self.what == "garbage":
            return Answer(200, GARBAGE, {"Content-Type": "text/html"}, "garbage")
        if self.what == "half":
            return replace(right, half=True)
        return right


def _inside(request: Request) -> str:
    return {"ec2": "InternalError", "servicequotas": "ServiceException"}.get(request.service, "InternalServerError")


def throttled(request: Request) -> Refusal:
    if request.service == "ec2":
        return Refusal("RequestLimitExceeded", "Request limit exceeded.", 503)
    if request.service == "servicequotas":
        return Refusal("TooManyRequestsException", "Due to throttling, the request was denied.", 429)
    if request.service in JSON:
        return Refusal("ThrottlingException", "Rate exceeded", 400)
    if request.service == "s3":
        return Refusal("SlowDown", "Please reduce your request rate.", 503)
    return Refusal("Throttling", "Rate exceeded", 400)


class Script:
    """The faults that are to come. What several would do to one request is done by the first."""

    def __init__(self) -> None:
        self._played: list[tuple[Fault, list[int]]] = []

    def play(self, *faults: Fault) -> None:
        self._played += [(fault, [0]) for fault in faults]

    def clear(self) -> None:
        self._played.clear()

    def meet(self, request: Request, zone: str = "") -> Fault | None:
        """What this request meets; it counts for every fault that it fits."""
        found = None
        for fault, count in self._played:
            if not fault.fits(request, zone):
                continue
            count[0] += 1
            last = None if fault.times is None else fault.nth + fault.times - 1
            if found is None and count[0] >= fault.nth and (last is None or count[0] <= last):
                found = fault
        return found
