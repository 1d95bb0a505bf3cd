"""The contract of a provisioner, as a provider's module imports it, ours or a third party's.

`Provisioner` is what every provider has; the `Tells…`, `AdmitsCaller`, `KnowsMachines`, `LaunchesOneByOne`,
`GrantsMachines`, `ShowsExamples`, `ForgetsRegions` and `ListsEveryOwner` Protocols are what it may have besides: a
provisioner has the members of those that it can serve. `Context` is what its factory is called with, `CONTRACT` the
version to state as `contract`. The nouns (`Offer`, `Resource`, …) are in `gpuops.core.models`, `Quota` in
`gpuops.core.quota`, the errors in `gpuops.core.errors`. The definitions themselves stand in `gpuops.core.provider`,
since the core calls provisioners and imports none.
"""

from gpuops.core.provider import (
    CONTRACT,
    NOTHING,
    AdmitsCaller,
    Context,
    Credential,
    ForgetsRegions,
    GrantsMachines,
    KnowsMachines,
    LaunchesOneByOne,
    ListsEveryOwner,
    Provisioner,
    ShowsExamples,
    TellsBalance,
    TellsLogs,
    TellsPayer,
    TellsPolicy,
    TellsQuota,
    TellsSite,
    TellsTime,
    credential,
)

__all__ = [
    "CONTRACT",
    "NOTHING",
    "AdmitsCaller",
    "Context",
    "Credential",
    "ForgetsRegions",
    "GrantsMachines",
    "KnowsMachines",
    "LaunchesOneByOne",
    "ListsEveryOwner",
    "Provisioner",
    "ShowsExamples",
    "TellsBalance",
    "TellsLogs",
    "TellsPayer",
    "TellsPolicy",
    "TellsQuota",
    "TellsSite",
    "TellsTime",
    "credential",
]
