"""What `gpuops doctor` tells of a Slurm cluster: partitions, what is free of them now, the user's limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuops.core.format import plural
from gpuops.core.models import SiteFact
from provisioners.batch.survey import describe_queue
from provisioners.slurm.commands import Partition, parse_gpus
from provisioners.slurm.site import Site, describe_nodes, is_usable

ASSOCIATION = ("account", "partition", "qos", "jobs at once", "jobs submitted", "time", "per job", "for all its users")
QOS = ("qos", "jobs at once", "jobs submitted", "time", "at once", "for all its users")
"""The columns of `commands.SURVEY`, as people read them."""


def survey_site(site: Site, text: str) -> list[SiteFact]:
    """`text`: what commands.SURVEY printed."""
    lines = text.splitlines()
    used = {words[0]: parse_gpus(words[1])[0] for words in map(str.split, _told(lines, "used")) if len(words) == 2}
    with_gpus = [one for one in site.partitions if site.has_gpus(one.name)]
    others = [one.name for one in site.partitions if one not in with_gpus]
    version = next(_told(lines, "version"), "").rpartition(" ")[2]  # behind `slurm` or `slurm-wlm`
    say = f"Slurm {version}".strip() + f", {plural(len(site.partitions), 'partition')}"
    return [
        SiteFact("cluster", say + (f", of which without GPUs: {', '.join(others)}" if others else "")),
        *(SiteFact("partition", describe_partition(site, one, used)) for one in with_gpus),
        *_describe_limits(lines),
    ]


def _told(lines: Sequence[str], kind: str) -> Iterator[str]:
    return (line.partition("|")[2].strip() for line in lines if line.startswith(f"{kind}|"))


def describe_partition(site: Site, partition: Partition, used: Mapping[str, int]) -> str:
    """`used`: GPUs in use, by node."""
    nodes = [node for node in site.nodes if node.partition == partition.name]
    free = sum(max(0, node.gpus - used.get(node.name, 0)) for node in nodes if is_usable(node.state))
    return describe_queue(
        f"partition {partition.name}",
        describe_nodes(site, partition.name),
        free,
        sum(node.gpus for node in nodes),
        is_default=any(node.is_default for node in nodes),
        max_s=partition.max_s,
        default_s=partition.default_s,
    )


def _describe_limits(lines: Sequence[str]) -> list[SiteFact]:
    """Of each account of the user's, and of each QOS that one of them may use and that limits anything."""
    own = [line.split("|") for line in _told(lines, "assoc")]
    usable = {name for row in own if len(row) > 2 for name in row[2].split(",")}
    qos = [row for line in _told(lines, "qos") if (row := line.split("|"))[0] in usable and any(row[1:])]
    said = [_describe_row(ASSOCIATION, row) for row in own] + [_describe_row(QOS, row) for row in qos]
    if said:
        return [SiteFact("limits", say) for say in dict.fromkeys(said)]
    why = next(_told(lines, "untold"), "") or "sacctmgr names no account of yours"
    return [SiteFact("limits", f"what limits your account has cannot be read: {why}", "ask who runs the cluster")]


def _describe_row(columns: Sequence[str], row: Sequence[str]) -> str:
    """`account phys: qos normal,long, jobs at once 4`."""
    told = [f"{name} {value}" for name, value in zip(columns, row, strict=False) if value]
    return f"{told[0]}: {', '.join(told[1:]) or 'no limits of its own'}" if told else "an account without a name"
