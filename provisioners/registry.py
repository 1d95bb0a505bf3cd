"""The one way to a provisioner: a lazy table of ours, then entry points of other wheels.

Listing names imports nothing; a provider's SDK is imported by the provider's own module, inside
its functions. A third party adds one with the entry point group `gpuops.provisioners`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from gpuops.core.errors import GpuopsError, UsageError
from gpuops.core.names import did_you_mean
from provisioners.base import CONTRACT, Context, Provisioner
from provisioners.checked import Checked

OURS = {
    "local": "provisioners.local:LocalProvisioner",
    "ssh": "provisioners.ssh:SshProvisioner",
    "runpod": "provisioners.runpod:RunpodProvisioner",
    "aws": "provisioners.aws:AwsProvisioner",
}
GROUP = "gpuops.provisioners"
MEMBERS = sorted({*Provisioner.__annotations__, *(name for name in vars(Provisioner) if not name.startswith("_"))})
"""Everything that the contract asks of a provisioner."""


def names() -> list[str]:
    """Every provider that can be named after `gpuops up`."""
    return sorted({*OURS, *(point.name for point in entry_points(group=GROUP))})


def load(name: str, context: Context) -> Provisioner:
    """The provisioner of that name. Raises UsageError for an unknown, broken or unfit one."""
    if name in OURS:
        module, attribute = OURS[name].split(":")
        return Checked(cast(Provisioner, getattr(import_module(module), attribute)(context)))
    try:
        provisioner = _third_party(name)(context)
    except GpuopsError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"the provisioner '{name}' cannot be loaded: {type(error).__name__}: {error}",
            f"reinstall the package that brings '{name}', or remove it",
        ) from error
    missing = [member for member in MEMBERS if not hasattr(provisioner, member)]
    version = getattr(provisioner, "contract", None)
    if version != CONTRACT or missing:
        what = f"lacks {', '.join(missing)}" if missing else f"was written for contract {version}"
        raise UsageError(
            f"the provisioner '{name}' {what}, and does not fit this gpuops (contract {CONTRACT})",
            f"upgrade gpuops and the package that brings '{name}'",
        )
    try:
        return Checked(provisioner)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the provisioner '{name}' says of itself what makes no sense: {error}",
            f"upgrade the package that brings '{name}', or tell whoever wrote it",
        ) from error


def _third_party(name: str) -> Callable[[Context], Provisioner]:
    for point in entry_points(group=GROUP):
        if point.name == name:
            return cast("Callable[[Context], Provisioner]", point.load())
    near = did_you_mean(name, names())
    raise UsageError(
        f"there is no provider named '{name}'" + (near and f"; {near}"),
        f"choose one of: {', '.join(names())}",
    )
