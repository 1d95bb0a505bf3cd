"""The one way to a provisioner: a lazy table of ours, then entry points of other wheels.

Listing names imports nothing; a provider's SDK is imported by the provider's own module, inside
its functions. A third party adds one with the entry point group `gpuops.provisioners`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from gpuops.core.account_variables import OURS, AccountVariables
from gpuops.core.errors import GpuopsError, UsageError
from gpuops.core.names import did_you_mean
from gpuops.core.settings import select
from provisioners.base import CONTRACT, Context, Provisioner
from provisioners.checked_provisioner import CheckedProvisioner, declared_variables

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

BUILT_IN = {
    "local": "provisioners.local:LocalProvisioner",
    "ssh": "provisioners.ssh:SshProvisioner",
    "slurm": "provisioners.slurm:SlurmProvisioner",
    "pbs": "provisioners.pbs:PbsProvisioner",
    "runpod": "provisioners.runpod:RunpodProvisioner",
    "vast": "provisioners.vast:VastProvisioner",
    "aws": "provisioners.aws:AwsProvisioner",
}
ENTRY_POINT_GROUP = "gpuops.provisioners"
REQUIRED_MEMBERS = sorted(
    {*Provisioner.__annotations__, *(name for name in vars(Provisioner) if not name.startswith("_"))}
)
"""Everything that the contract asks of a provisioner."""
ADDED_LATER = ("credentials", "surroundings")
"""Members that the first provisioners of this contract lack. They are loaded all the same: what they have rented must
end."""


def provider_names() -> list[str]:
    """Every provider that can be named after `gpuops up`."""
    return sorted({*BUILT_IN, *(point.name for point in _entry_points())})


def account_variables(name: str) -> AccountVariables:
    """The variables by which a provider knows an account. Of ours nothing is imported; none for an unknown or broken
    provider."""
    if name in OURS:
        return OURS[name]
    try:
        return declared_variables(_load_entry_point(name))
    except (Exception, SystemExit):
        return AccountVariables()


def other_credentials() -> set[str]:
    """The credentials that provisioners of other wheels declare."""
    others = [name for name in provider_names() if name not in BUILT_IN]
    return {variable for name in others for variable in account_variables(name).credentials}


def load_provisioner(name: str, context: Context) -> CheckedProvisioner:
    """The provisioner of that name, with the keys of `context.dotenv` that are its own. Raises UsageError for an
    unknown, broken or unfit one."""
    context = replace(context, dotenv=select(context.dotenv, account_variables(name).credentials))
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name].split(":")
        return CheckedProvisioner(cast(Provisioner, getattr(import_module(module), attribute)(context)))
    try:
        provisioner = _load_entry_point(name)(context)
    except GpuopsError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"the provisioner '{name}' cannot be loaded: {type(error).__name__}: {error}",
            f"reinstall the package that brings '{name}', or remove it",
        ) from error
    needed = [member for member in REQUIRED_MEMBERS if member not in ADDED_LATER]
    missing = [member for member in needed if not hasattr(provisioner, member)]
    version = getattr(provisioner, "contract", None)
    if version != CONTRACT or missing:
        what = f"lacks {', '.join(missing)}" if missing else f"was written for contract {version}"
        raise UsageError(
            f"the provisioner '{name}' {what}, and does not fit this gpuops (contract {CONTRACT})",
            f"upgrade gpuops and the package that brings '{name}'",
        )
    try:
        return CheckedProvisioner(provisioner)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the provisioner '{name}' says of itself what makes no sense: {error}",
            f"upgrade the package that brings '{name}', or tell whoever wrote it",
        ) from error


def _entry_points() -> EntryPoints:
    from importlib.metadata import entry_points  # slow to import, and a guard most often does without

    return entry_points(group=ENTRY_POINT_GROUP)


def _load_entry_point(name: str) -> Callable[[Context], Provisioner]:
    for point in _entry_points():
        if point.name == name:
            return cast("Callable[[Context], Provisioner]", point.load())
    near = did_you_mean(name, provider_names())
    raise UsageError(
        f"there is no provider named '{name}'" + (near and f"; {near}"),
        f"choose one of: {', '.join(provider_names())}",
    )
