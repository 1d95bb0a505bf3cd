"""What the service does when it is asked: rents asks out, runs and ends instances, and counts what they cost."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from itertools import count
from threading import RLock
from typing import Any

from tests.fakes.runpod.clock import DrivenClock
from tests.fakes.runpod.records import Body, Nothing
from tests.fakes.vast.asks import stock
from tests.fakes.vast.records import Instance, Life

MAX_ONSTART = 4048
MIN_DISK_GB = 8


class Refusal(Exception):
    """An answer that is none of success."""

    def __init__(self, status: int, error: str, msg: str, **more: Any) -> None:
        super().__init__(f"{status}: {msg}")
        self.status = status
        self.body = {"success": False, "error": error, "msg": msg, **more}


class Service:
    """Its methods are called with `lock` held, by whichever thread serves the request."""

    def __init__(self, clock: DrivenClock, make_body: Callable[[Instance], Body] | None = None) -> None:
        self.lock = RLock()
        self.clock = clock
        self.asks = {ask.id: ask for ask in stock()}
        self.instances: dict[int, Instance] = {}
        """All that there ever were."""
        self.balance = 100.0
        self.credit: float | None = None
        """What was paid in before; None: not told, as in the description."""
        self.plenty = False
        """Whether an ask can be rented by many."""
        self.key, self.other_key = secrets.token_hex(32), secrets.token_hex(32)
        self.life = Life()
        self.next_lives: list[Life] = []
        """Of the next instances; then `life`."""
        self.make_body = make_body or (lambda _: Nothing())
        self._numbers, self._ports = count(31_000_001), count(40022)
        self._metered = clock.now()

    @property
    def money(self) -> float:
        return self.balance + (self.credit or 0.0)

    # ---- time

    def settle(self) -> None:
        """Let all happen that is due by now."""
        now = self.clock.now()
        for one in self.living():
            cost = one.per_hour * max(0.0, now - self._metered) / 3600
            one.billed += cost
            self.balance -= cost
            one.dead = one.dead or bool(one.booted and not one.stopped and getattr(one.body, "first_ended", False))
            if not one.booted and not one.stopped and one.status(now) == "running":
                one.booted = True
                one.body.boot(wiped=one.up_at is None)
        self._metered = now
        if self.money <= 0:
            for one in self.living():
                self.stop(one)

    def living(self) -> list[Instance]:
        return [one for one in self.instances.values() if one.bills]

    # ---- renting

    def create(self, account: str, ask_id: int, body: Mapping[str, Any]) -> Instance:
        ask = self.asks.get(ask_id)
        if ask is None:
            raise Refusal(
                404, "invalid_args", f"error 404/3603: no_such_ask Instance type by id {ask_id} is not available."
            )
        if ask.taken:
            gone = f"error 410/3907: no_such_ask Instance type {ask_id} is no longer available."
            raise Refusal(410, "no_such_ask", gone, ask_id=ask_id)
        self._check(body)
        bid = body.get("price")
        if self.money <= 0:
            raise Refusal(400, "insufficient_credit", "Insufficient credits: add credit to your account")
        life = self.next_lives.pop(0) if self.next_lives else self.life
        request = {"disk": MIN_DISK_GB, **body}
        one = Instance(next(self._numbers), account, ask, request, life, self.clock.now(), bid)
        one.direct_port, one.proxy_port = next(self._ports), next(self._ports)
        self.instances[one.number] = one
        if bid is not None and bid < ask.min_bid:
            one.stopped = True
            low = f"bid {bid} is below the minimum of {ask.min_bid}"
            raise Refusal(400, "invalid_price", low, new_contract=one.number)
        ask.taken = not self.plenty
        one.body = self.make_body(one)
        return one

    def _check(self, body: Mapping[str, Any]) -> None:
        wrong = (
            (not body.get("image"), "image is required"),
            (len(body.get("onstart") or "") > MAX_ONSTART, f"onstart is longer than {MAX_ONSTART}"),
            (len(body.get("label") or "") > 256, "label is too long"),
            (float(body.get("disk", MIN_DISK_GB)) < MIN_DISK_GB, "disk is too small"),
            (body.get("runtype") not in ("ssh_direc ssh_proxy", "ssh_proxy", "ssh", "args"), "runtype"),
            (not isinstance(body.get("env", {}), dict | str), "env"),
        )
        for is_wrong, why in wrong:
            if is_wrong:
                raise Refusal(400, "invalid_args", f"error 400/3467: Invalid args: {why}")
        if body.get("price") is not None and not 0.001 <= body["price"] <= 128:
            raise Refusal(400, "invalid_price", "price must be from 0.001 to 128")

    def find(self, account: str, number: int) -> Instance:
        """Raises Refusal for what is gone, or another's; an instance's own key finds that one alone."""
        one = self.instances.get(number)
        if one is None or not one.bills or account not in (one.account, one.key):
            raise Refusal(404, "not_found", "Instance not found")
        return one

    # ---- ends

    def stop(self, one: Instance) -> None:
        one.body.halt()
        one.stopped, one.booted = True, False

    def reboot(self, one: Instance) -> None:
        """Its container stops and starts, on the same disk."""
        one.body.halt()
        one.stopped = one.booted = one.dead = False
        one.up_at = self.clock.now()

    def destroy(self, one: Instance) -> None:
        one.body.halt()
        one.ended = self.clock.now()
        one.ask.taken = False
