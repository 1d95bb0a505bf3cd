"""What is said, and what to type next, where something could not be ended."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.core.errors import ProviderError, Rejected, StillBilling, find_auth_failure
from gpuops.core.format import money
from gpuops.core.models import Resource
from gpuops.ledger.store import ClusterRow


def suggest_command(command: str, error: BaseException | None) -> str:
    """What to type next; first what mends the error: what makes a provider take the credentials, where it is these
    that it refuses, else its own hint, where a retry alone would not help."""
    refused = find_auth_failure(error) or (error if isinstance(error, Rejected) else None)
    return f"{refused.hint}; then: {command}" if refused and refused.hint else command


def still_billing_error(
    remaining: Sequence[Resource], offered: float, trouble: str, otherwise: str, command: str
) -> StillBilling:
    """The error that names what may still be there, its price per hour, why, and the next command.

    `otherwise`: what to name where nothing is known by name. The price is the resources' own, else `offered` ($/h).
    """
    names = ", ".join(resource.name for resource in remaining) or otherwise
    price = sum(resource.per_hour for resource in remaining if resource.bills)
    if not price and (any(resource.bills for resource in remaining) or not remaining):
        price = offered
    bill = f" and bill {money(price)}/h" if price else ""
    return StillBilling(f"{names} may still be there{bill}" + (f": {trouble}" if trouble else ""), command)


def suggest_after_down(row: ClusterRow, error: ProviderError | None, *, is_rented: bool, force: bool) -> str:
    """What to type after a teardown that failed: for hosts of the user's own, what makes an end of it."""
    down = f"gpuops down {row.name}"
    if is_rented and force and not find_auth_failure(error):
        return "the guard goes on ending it; what is left: gpuops status --cloud"
    if is_rented or find_auth_failure(error):
        return suggest_command(down, error)
    mend = f"{error.hint}; or " if isinstance(error, Rejected) and error.hint else ""
    return f"{mend}give up what cannot be ended: {down} --force"
