"""Who asks, how often, and what an account is told about itself."""

from __future__ import annotations

import time
from typing import Any

from tests.fakes.runpod.problems import TOO_MANY, Refusal
from tests.fakes.runpod.records import Account
from tests.fakes.runpod.requests import Caller
from tests.fakes.runpod.service import Service


class Desk:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.quota = 6000
        """Requests of an account in a minute."""
        self.quota_left = self.quota
        self.hides_email = False
        """Whether keys may ask for the money of an account, and not for its address."""
        self._quotas: dict[str, Quota] = {}

    def caller(self, authorization: str) -> Caller:
        kind, _, key = authorization.partition(" ")
        if kind.lower() != "bearer" or not key:
            raise Refusal(401, "missing bearer token")
        for account in (self.service.own, self.service.other):
            if key == account.key:
                return Caller(account)
            if key == account.read_only_key:
                return Caller(account, may_write=False)
        for pod in self.service.course.pods.values():
            if key == pod.key:  # for a while it outlives its pod, which then is "not found"
                return Caller(pod.account, pod=pod)
        raise Refusal(401, "invalid bearer token")

    def count_against_quota(self, caller: Caller) -> None:
        self.quota_left = 0
        self.quota_left = self._quotas.setdefault(caller.account.id, Quota()).take(self.quota)

    def myself(self, account: Account) -> dict[str, Any]:
        """What GraphQL tells of an account."""
        return {
            "id": account.id,
            "email": account.email,
            "pubKey": "\n".join(account.ssh_keys),
            "clientBalance": round(account.balance, 6),
            "currentSpendPerHr": round(self.service.course.rate(account), 6),
            "spendLimit": account.spend_limit,
            "networkVolumes": [
                {"id": one.id, "name": one.name, "size": one.size, "dataCenterId": one.data_center}
                for one in self.service.volumes_of(account)
            ],
            "pods": [{"id": pod.id, "name": pod.name} for pod in self.service.pods_of(account)],
        }


class Quota:
    """Requests of the last minute, in real time."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def take(self, most: int) -> int:
        """How many are left after one more; the one over the quota is refused."""
        now = time.monotonic()
        self._times = [one for one in self._times if one > now - 60.0]
        if len(self._times) >= most:
            wait = max(1, round(self._times[0] + 60.0 - now))
            raise Refusal(429, TOO_MANY, headers={"Retry-After": str(wait)})
        self._times.append(now)
        return most - len(self._times)
