"""Which function answers which request; what has none is moto's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fakes.aws import wire
from tests.fakes.aws.requests import Answer, Refusal, Request
from tests.fakes.aws.world import World

Handler = Callable[[World, Request], Any]
HANDLERS: dict[str, Handler] = {}


def answers(*permissions: str) -> Callable[[Handler], Handler]:
    """`ec2:RunInstances`; the function gives an Answer, or what boto3 is to hand out."""

    def keep(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(permissions, handler))
        return handler

    return keep


def answer(world: World, request: Request) -> Answer:
    """With the world's lock held."""
    handler = HANDLERS.get(request.permission)
    if handler is None:
        if request.service == "ec2":
            world.ec2(request.region)
        elif request.service not in ("s3", "sts", "iam"):
            raise Refusal("UnknownOperationException", "", 400)
        return world.moto.ask(request)
    given = handler(world, request)
    return given if isinstance(given, Answer) else wire.result(request, given)
