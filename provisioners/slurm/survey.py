"""What `gpuops doctor` tells of a Slurm cluster: partitions, what is free of them now, the user's limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuops.core.format import plural
from gpuops.core.models import SiteFact
from provisioners.batch.survey import describe_queue
from provisioners.slurm.commands import Partition, parse_gpus
from provisioners.slurm.limits import Limits, describe_limits
from provisioners.slurm.site import Site, describe_nodes, is_usable


def survey_site(site: Site, text: str, limits: Limits) -> list[SiteFact]:
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
        *describe_limits(limits),
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
