"""Flags that choose a machine to rent make no sense where the machines are the user's own."""

from __future__ import annotations

from gpuops.core.errors import UsageError
from gpuops.core.models import Request


def refuse_rent(request: Request, why: str, hint: str) -> None:
    """Raises UsageError naming all of them. `why`: `these hosts are yours`."""
    flags = [
        flag
        for flag, value in (
            ("--gpu-type", request.gpu_type),
            ("--gpu-mem", request.gpu_mem),
            ("--region", request.region),
            ("--image", request.image),
        )
        if value is not None
    ]
    if flags:
        names, verb = " and ".join(flags), "says" if len(flags) == 1 else "say"
        raise UsageError(f"{names} {verb} which machine to rent, and {why}", f"leave out {names}{hint}")
