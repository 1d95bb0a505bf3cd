"""An AWS account: the boto3 clients that ask it, whose it is, its plan, and which regions and profiles are meant.

Clients, sessions and identities are kept for the whole command. boto3 is imported where it is used, since that takes
long.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from gpuops.core.errors import AuthFailed, GpuopsError, NotSetUp, ProviderError, Rejected, UsageError
from gpuops.core.models import Request
from gpuops.core.names import did_you_mean
from gpuops.core.polling import Clock
from provisioners.aws import credentials, errors
from provisioners.aws.api import PROFILE, ask, join_region, split_region
from provisioners.base import NOTHING
from provisioners.kit.http_api import ServerClock

E = TypeVar("E", bound=Exception)
REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+")
DEFAULT = "us-east-1"
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
IDENTITY_TIMEOUT_S = 10.0
"""Shorter than READ_TIMEOUT_S: without the answer a name is missing, and nothing else."""
MAX_ATTEMPTS = 3
PROFILES = "aws-profiles"
"""File in gpuops' own folder: one profile a line, of those that something was ever made with."""


class Plan(Enum):
    """What AWS says of an account's plan."""

    FREE = "FREE"
    OTHER = ""
    """A paid one, or an answer that is not documented."""
    UNKNOWN = "unknown"
    """It may not be asked, or was not answered; or there is none, as with accounts from before July 2025."""

    @classmethod
    def _missing_(cls, _: object) -> Plan:
        return cls.OTHER


@dataclass(frozen=True)
class Identity:
    """Who the credentials are."""

    account: str
    """The account's number."""
    arn: str
    name: str
    """The user's or role's own name."""

    @property
    def say(self) -> str:
        return f"AWS account {self.account}, as {self.name}"


class Account:
    """The AWS accounts that the environment's credentials and profiles reach. May be used from any thread."""

    def __init__(
        self, env: Mapping[str, str], home: Path, dotenv: Mapping[str, str] = NOTHING, clock: Clock | None = None
    ) -> None:
        self.env = env
        self.home = home
        self.clock = clock or Clock()
        self.server_clock = ServerClock(self.clock)
        self._dotenv = dotenv
        self._lock = threading.RLock()
        self._sessions: dict[str, tuple[Any, str]] = {}
        self._clients: dict[tuple[str, str, bool], Any] = {}
        self._identities: dict[str, Identity] = {}
        self._identity_lock = threading.Lock()
        self._unidentified: set[str] = set()
        """Profiles whose identity AWS does not say."""
        self.price_list = DEFAULT
        """Where the price list has answered last (`pricing`)."""
        self._plan_lock = threading.Lock()
        self._plans: dict[str, Plan] = {}

    def client(self, service: str, region: str) -> Any:
        """A client that retries, for calls that create nothing. Raises NotSetUp, AuthFailed, UsageError."""
        return self._client(service, region, launching=False)

    def launcher(self, region: str) -> Any:
        """An EC2 client without retries, for calls that create: `launch` retries them with their client token."""
        return self._client("ec2", region, launching=True)

    def source(self, region: str) -> str:
        """Where the credentials for a region come from. Raises NotSetUp, AuthFailed."""
        return self._session(split_region(region)[1])[1]

    def known_identity(self, region: str) -> Identity | None:
        """Who this is, without asking AWS; None where it was not asked before."""
        with self._lock:
            return self._identities.get(split_region(region)[1])

    def identity_if_allowed(self, region: str) -> Identity | None:
        """Who this is; None where these credentials may not ask that, or AWS does not answer, which is remembered.
        Raises AuthFailed for credentials that AWS does not accept."""
        profile = split_region(region)[1]
        with self._identity_lock:
            if profile in self._unidentified:
                return None
            try:
                return self.identity(region)
            except ProviderError as error:
                if isinstance(error, AuthFailed) and not errors.lacks_permission(error):
                    raise
                self._unidentified.add(profile)
        return None

    def identity(self, region: str) -> Identity:
        """Who this is, by one request unless it is known. Raises ProviderError."""
        profile = split_region(region)[1]
        with self._lock:
            known = self._identities.get(profile)
        if known is None:
            try:
                answer = ask("ask who this is", self._client("sts", region, launching=True).get_caller_identity)
            except AuthFailed as error:
                explained = self.explain(region, error)
                if explained is error:
                    raise
                raise explained from error
            arn = str(answer.get("Arn") or "")
            known = Identity(str(answer["Account"]), arn, re.split("[:/]", arn)[-1])
            with self._lock:
                self._identities[profile] = known
        return known

    def plan(self, region: str) -> Plan:
        """The account's plan; asked once."""
        profile = split_region(region)[1]
        with self._plan_lock:
            if profile not in self._plans:
                self._plans[profile] = Plan.UNKNOWN
                with suppress(ProviderError):
                    client = self._client("freetier", join_region(DEFAULT, profile), launching=True)
                    answer = ask("ask for the account's plan", client.get_account_plan_state)
                    self._plans[profile] = Plan(answer.get("accountPlanType"))
            return self._plans[profile]

    def explain(self, region: str, error: E) -> E | AuthFailed:
        """The error, or a better one where a region refuses credentials that others accept: it is not switched on."""
        name, profile = split_region(region)
        if errors.code(error) not in errors.UNKNOWN_CALLER_CODES or name == DEFAULT:
            return error
        try:
            ask("ask who this is", self.client("sts", join_region(DEFAULT, profile)).get_caller_identity)
        except GpuopsError:
            return error
        return AuthFailed(
            f"the region {name} is not switched on in this AWS account",
            f"switch it on (aws account enable-region --region-name {name}), or leave it out",
        )

    def regions(self, request: Request | None) -> list[str]:
        """Where to look: `--region` (several by commas), else the environment's or the profile's region."""
        option = str((request.options.get("profile") if request else None) or "").strip()
        profile = option or credentials.current_profile(self.env)
        listed = ((request.region if request else None) or "").split(",")
        regions = [part.strip() for part in listed if part.strip()] or [self._default_region(profile)]
        names_and_profiles = [split_region(region) for region in regions]
        for name, _ in names_and_profiles:
            self._check_region(name)
        return list(dict.fromkeys(join_region(name, own or profile) for name, own in names_and_profiles))

    def profiles(self) -> list[str]:
        """Every profile ever used to make something, and "" for the surroundings' own credentials. Raises NotSetUp."""
        try:
            used = [line.strip() for line in (self.home / PROFILES).read_text(encoding="utf-8").splitlines()]
        except FileNotFoundError:
            used = []
        known = list(dict.fromkeys(line for line in used if line))
        if credentials.current_profile(self.env) in known:
            return known
        try:
            self._session("")
        except NotSetUp:
            if not known:
                raise
            return known
        return [*known, ""]

    def opted_in(self, profile: str) -> list[str]:
        """The regions that are switched on in a profile's account. Raises ProviderError."""
        client = self.client("ec2", join_region(self._default_region(profile), profile))
        answer = ask("list the account's regions", client.describe_regions)
        return [join_region(str(region["RegionName"]), profile) for region in answer.get("Regions") or []]

    def record_profile(self, region: str) -> None:
        """Before something is made: `profiles` has this profile from now on. Raises Rejected."""
        profile = split_region(region)[1]
        path = self.home / PROFILES
        try:
            with self._lock:
                before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
                if profile and profile not in before:
                    with open(path, "a", encoding="utf-8") as file:
                        file.write(f"{profile}\n")
                        file.flush()
                        os.fsync(file.fileno())
        except OSError as error:
            raise Rejected(
                f"gpuops cannot note the profile in {path}: {error.strerror}", "see that it can be written"
            ) from error

    def _client(self, service: str, region: str, *, launching: bool) -> Any:
        with self._lock:
            key = (service, region, launching)
            if key not in self._clients:
                name, profile = split_region(region)
                session, _ = self._session(profile)
                from botocore.config import Config

                attempts = 1 if launching else MAX_ATTEMPTS
                settings = Config(
                    connect_timeout=CONNECT_TIMEOUT_S,
                    read_timeout=IDENTITY_TIMEOUT_S if service in ("sts", "freetier") else READ_TIMEOUT_S,
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    user_agent_extra="gpuops",
                    max_pool_connections=32,
                )
                client = ask(
                    f"speak with AWS in {name}",
                    session.client,
                    service_name=service,
                    region_name=name,
                    endpoint_url=credentials.endpoint(self.env),
                    config=settings,
                )
                setattr(client, PROFILE, profile)
                client.meta.events.register("after-call", self._note_time)
                self._clients[key] = client
            return self._clients[key]

    def _note_time(self, http_response: Any, **_: Any) -> None:
        """After each answer, whatever it says (botocore's `after-call`)."""
        self.server_clock.note(http_response.headers.get("date"))

    def _session(self, profile: str) -> tuple[Any, str]:
        """A session with the credentials of a profile or of the environment, and their source. Raises NotSetUp,
        AuthFailed."""
        with self._lock:
            if profile not in self._sessions:
                self._sessions[profile] = ask(
                    "find its AWS credentials", credentials.session, env=self.env, profile=profile, dotenv=self._dotenv
                )
            return self._sessions[profile]

    def _default_region(self, profile: str) -> str:
        """The region where none is named."""
        exported = self.env.get("AWS_REGION", "").strip() or self.env.get("AWS_DEFAULT_REGION", "").strip()
        return exported or str(self._session(profile)[0].region_name or "") or DEFAULT

    def _check_region(self, name: str) -> None:
        """Raises UsageError for what is no region, or none that boto3 knows: asking there would find no server."""
        known = credentials.known_regions()
        if name in known:
            return
        if name[:-1] in known and name[-1].isalpha():
            raise UsageError(
                f"{name} is a zone, and no region",
                f"say --region {name[:-1]}: its zones are tried by their prices (--zone {name} for that one alone)",
            )
        hint = did_you_mean(name, known, 3, 0.7) or "write it like us-east-1, several by commas"
        upgrade = " Where it is new: pip install -U boto3" if REGION.fullmatch(name) else ""
        raise UsageError(f"AWS has no region '{name}' that this computer knows", hint + upgrade)
