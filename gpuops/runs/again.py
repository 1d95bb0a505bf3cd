"""Attempt after attempt: a job whose machines were taken back goes on with others, as often as it may."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.context import World
from gpuops.core.errors import GpuopsError, Interrupted, MachineGone
from gpuops.ledger.store import ClusterRow
from gpuops.offers.approval import LeaseWish
from gpuops.runs import receipt, retries
from gpuops.runs.retries import Chain, Loss


@dataclass
class Outcome:
    """What a job came to: an exit code, and what is printed last."""

    exit_code: int
    document: Mapping[str, Any]
    last: Sequence[str] = ()
    loss: Loss | None = None
    """The machines were taken back; what is left of the cluster, and what it has cost in $, once it is gone."""
    gone: ClusterRow | None = None
    cost: float = 0.0
    error: MachineGone | None = None
    """They were taken back before there was a run."""


Attempt = Callable[[LeaseWish, str | None], Outcome]
"""One run on one cluster: within which limits, and which run it goes on from."""


def until_it_ends(world: World, chain: Chain, wish: LeaseWish, attempt: Attempt) -> Outcome:
    """What the last attempt came to. Raises GpuopsError where there never was a run."""
    outcome = _borne(world, chain, wish, attempt, Outcome(0, {}))
    while outcome.loss is not None:
        outcome = _again(world, chain, wish, attempt, outcome, outcome.loss)
    return outcome


def _borne(world: World, chain: Chain, wish: LeaseWish, attempt: Attempt, before: Outcome) -> Outcome:
    """An attempt. Machines that went before there was a run are a loss as well, once nothing is left of them."""
    try:
        return attempt(wish, chain.resume)
    except MachineGone as error:
        row = None if error.cluster is None else world.ledger.cluster(error.cluster)
        if not chain.retries or world.signals.count or row is None or row.state != "gone":
            raise
        loss = retries.unready(row, error, world.clock.now())
        cost = retries.cost(row, 0.0)
        return Outcome(error.exit_code, before.document, before.last, loss, row, cost, error)


def _again(world: World, chain: Chain, wish: LeaseWish, attempt: Attempt, before: Outcome, loss: Loss) -> Outcome:
    """The next run of a job whose machines were taken back; the verdict stands where there may be none, or is none."""
    assert before.gone is not None
    rest, why = retries.within(wish, before.gone, chain.spent + before.cost, world.clock.now())
    if chain.left <= 0:
        why = f"--retries {chain.retries} is used up"
    if why or world.signals.count:
        last = [*before.last, *([f"not tried again: {why}"] if why else [])]
        before = dataclasses.replace(before, last=last, loss=None)
        return _failed(world, before, chain, before.error, chain.spent + before.cost) if before.error else before
    world.signals.forward()
    chain.add(loss, before.cost)
    world.out.say(chain.announce(loss))
    try:
        return _borne(world, chain, rest, attempt, before)
    except GpuopsError as error:
        return _failed(world, before, chain, error, chain.spent)
    except Interrupted:
        if chain.resume:
            world.out.say(f"what {chain.resume} saved is home: --resume {chain.resume} goes on from it")
        raise


def _failed(world: World, before: Outcome, chain: Chain, error: GpuopsError, spent: float) -> Outcome:
    """What a job came to that got no other machines, or lost them again. Raises `error` where it never had a run, and
    so has no receipt: what its machines have cost (`spent`, in $) is said all the same."""
    if not before.document:
        world.out.say(receipt.without_run(spent))
        error.say = "; ".join([error.say, *before.last])
        raise error
    found = f"; go on from what is home: --resume {chain.resume}" if chain.resume else ""
    told = {"say": error.say, "hint": error.hint + found}
    document = {**before.document, "retries": chain.losses, "error": told, "exit_code": error.exit_code}
    said = f"error: {error.say}\nhint: {told['hint'].removeprefix('; ')}"
    return Outcome(error.exit_code, document, [*before.last, said])
