"""Whose clock says when a machine ends that never gets ready: the provider's, where this computer's is wrong.

That end is an absolute time, which travels with the request that creates. Everything else is sent as seconds from now.
"""

from __future__ import annotations

from gpuops.core.context import Context
from gpuops.core.format import span
from gpuops.core.provider import LoadedProvisioner

TOLERANCE_S = 60.0
"""What two clocks may differ by, and an answer may take."""


def clock_error_s(ctx: Context, provisioner: LoadedProvisioner) -> float:
    """Seconds to add to this computer's clock to get the provider's; 0 where they agree, or the provider's is not
    known."""
    told = provisioner.provider_time()
    error_s = 0.0 if told is None else told - ctx.clock.now()
    return error_s if abs(error_s) > TOLERANCE_S else 0.0


def warn_of_clock(ctx: Context, provisioner: LoadedProvisioner) -> None:
    """Say whose clock counts, where they do not agree."""
    error_s = clock_error_s(ctx, provisioner)
    if error_s:
        how = f"{span(abs(error_s))} {'behind' if error_s > 0 else 'ahead of'}"
        ctx.out.say(
            f"note: this computer's clock is {how} that of {provisioner.name}, by which machines end that do not get "
            "ready; set this one right before you trust the times that are shown here"
        )
