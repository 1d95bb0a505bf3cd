"""What a Slurm cluster has, what a request may have of it, and why it refuses one. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.errors import NoCapacity, ProviderError, QuotaExceeded, Rejected, Unknown
from gpuops.core.format import plural
from provisioners.batch.numbers import parse_count
from provisioners.batch.request import JobShape, choose_walltime, format_span
from provisioners.slurm.commands import NodeKind, Partition, describe_limit, parse_node, parse_partition
from provisioners.slurm.limits import Limits
from provisioners.slurm.options import Wishes

LIMIT_REASON = re.compile(r"^sbatch: error: (\w+)$", re.MULTILINE)
"""The line before `Job violates accounting/QOS policy`."""
NO_CONTROLLER = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Zero Bytes were")
"""The job may have been submitted all the same."""


@dataclass(frozen=True)
class Site:
    nodes: Sequence[NodeKind]
    partitions: Sequence[Partition]
    cluster: str = ""
    """Its name in the database."""
    enforces_limits: bool = False
    """Whether a job waits that asks for more than its account or QOS may have."""
    kill_wait_s: float | None = None
    signals_descendants: bool = False
    """Whether the end of a job is told to all processes that its own have started, and not to its own alone."""

    def has_gpus(self, partition: str) -> bool:
        return any(node.gpus for node in self.nodes if node.partition == partition)

    def partition_of(self, wishes: Wishes) -> Partition:
        """The request's partition, or the default one. Raises Rejected."""
        name = wishes.partition or next((node.partition for node in self.nodes if node.is_default), "")
        found = next((partition for partition in self.partitions if partition.name == name), None)
        if found is None:
            what = f"there is no partition {name}" if name else "this cluster has no default partition"
            raise Rejected(
                what, f"name one with --partition: {', '.join(one.name for one in self.partitions) or 'none'}"
            )
        return found


def parse_site(text: str) -> Site:
    """What commands.SITE printed. Raises Unknown."""
    lines = text.splitlines()
    nodes = [node for line in lines if line.startswith("node|") and (node := parse_node(line))]
    partitions = [one for line in lines if line.startswith("partition|") and (one := parse_partition(line))]
    told = dict(line.split("|", 1) for line in lines if line.startswith(("killwait|", "cluster|", "enforced|")))
    kill_wait_s = float(seconds) if (seconds := parse_count(told.get("killwait", ""))) else None
    enforced = set(told.get("enforced", "").lower().split(","))
    return Site(
        nodes, partitions, told.get("cluster", ""), not enforced.isdisjoint(("limits", "safe", "all")),
        kill_wait_s, "proctrack|linuxproc" in lines,
    )  # fmt: skip


def shape_job(wishes: Wishes, site: Site) -> JobShape:
    """Raises Rejected."""
    partition = site.partition_of(wishes)
    walltime_s = choose_walltime(wishes.hours, partition.default_s, partition.max_s, f"partition {partition.name}")
    fitting = _fitting_nodes(wishes, site, partition.name)
    gpus = min((node.gpus for node in fitting if node.gpus), default=0) if wishes.gpus is None else wishes.gpus
    shares = [
        node.cpus * gpus // node.gpus if gpus and node.gpus else node.cpus for node in fitting if node.gpus >= gpus
    ]
    cpus = wishes.cpus or max(1, min(shares, default=1))
    sbatch = [
        f"--partition={partition.name}", f"--nodes={wishes.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}",
        f"--time={format_span(walltime_s)}",
    ]  # fmt: skip
    if gpus:
        sbatch.append("--gres=gpu:" + (f"{wishes.gpu_type}:" if wishes.gpu_type else "") + str(gpus))
    sbatch += [f"--{name}={value}" for name, value in wishes.words.items() if name != "partition"]
    return JobShape(
        partition.name, wishes.nodes, gpus, wishes.gpu_type, cpus, walltime_s, [*sbatch, *wishes.raw], "partition"
    )


def _fitting_nodes(wishes: Wishes, site: Site, partition: str) -> list[NodeKind]:
    """The partition's nodes of the type and with the feature that were asked for, as far as that can be told."""
    nodes = [node for node in site.nodes if node.partition == partition]
    if wishes.gpu_type:
        nodes = [node for node in nodes if wishes.gpu_type in node.gpu_types]
        if not nodes:
            types = sorted({kind for node in site.nodes for kind in node.gpu_types})
            raise Rejected(
                f"no node of partition {partition} has a GPU that Slurm calls {wishes.gpu_type}",
                f"types here: {', '.join(types) or 'none is told, leave out --gpu-type'}",
            )
    feature = wishes.words.get("constraint", "")
    return [node for node in nodes if feature in node.features] or nodes if feature else nodes


def is_usable(state: str) -> bool:
    """Whether a node in that state takes jobs, now or once others have ended; `*`: it does not respond."""
    return state.startswith(("idle", "mix", "alloc", "comp")) and not state.endswith("*")


def describe_nodes(site: Site, partition: str) -> str:
    """`2 nodes with 4 h100 GPUs, 64 cores, 500 GB (1 idle)`."""
    nodes = [node for node in site.nodes if node.partition == partition]
    kinds = Counter((node.gpus, tuple(node.gpu_types), node.cpus, node.memory_mb) for node in nodes)
    parts = []
    for (gpus, types, cpus, memory), count in kinds.items():
        idle = sum(node.state.startswith("idle") for node in nodes if (node.gpus, node.cpus) == (gpus, cpus))
        gpu = f"{plural(gpus, ' '.join([*types, 'GPU']))}, " if gpus else ""
        parts.append(f"{plural(count, 'node')} with {gpu}{plural(cpus, 'core')}, {memory} MB ({idle} idle)")
    return " and ".join(parts) or "no nodes"


def explain_refusal(text: str, wishes: Wishes, site: Site, limits: Limits | None) -> ProviderError:
    """Why sbatch refused, by what it said."""
    said = text.lower()
    words = wishes.words
    own = limits.own if limits else ()
    if any(sign.lower() in said for sign in NO_CONTROLLER):
        return Unknown(f"Slurm's controller did not answer: {_last_line(text)}", "try again in a minute")
    if "invalid partition" in said:
        names = ", ".join(one.name for one in site.partitions)
        return Rejected(f"there is no partition {wishes.partition}", f"there are: {names}")
    if "invalid account" in said:
        names = ", ".join(dict.fromkeys(row["account"] for row in own))
        account = words.get("account", "your default one")
        return Rejected(
            f"account {account} may not be used in this partition", f"yours: {names or 'none is told'}; --account"
        )
    if "invalid qos" in said:
        names = ", ".join(dict.fromkeys(qos for row in own for qos in row["qos"].split(",") if qos))
        return Rejected(f"qos {words.get('qos', '')} may not be used", f"yours: {names or 'none is told'}; --qos")
    if "invalid feature" in said:
        known = sorted({one for node in site.nodes for one in node.features if one not in ("", "(null)")})
        return Rejected(
            f"no node has what --constraint {words.get('constraint', '')} asks for",
            f"there are: {', '.join(known) or 'no features at all'}",
        )
    if "reservation" in said:
        return Rejected(
            f"reservation {words.get('reservation', '')} cannot be used",
            "see which there are: scontrol show reservation",
        )
    if "configuration is not available" in said or "node count" in said or "more processors" in said:
        partition = site.partition_of(wishes).name
        return NoCapacity(
            f"partition {partition} can never have this job: {_last_line(text)}",
            f"it has {describe_nodes(site, partition)}; ask for less, or another --partition",
        )
    if is_limit_refusal(text):
        reason = LIMIT_REASON.search(text)
        why = f"{describe_limit(reason[1])} forbids this ({reason[1]})" if reason else _last_line(text)
        return QuotaExceeded(f"sbatch refuses: {why}", "ask for less, or another --qos or --account")
    return Rejected(f"sbatch refuses: {_last_line(text)}", "see what it means for this cluster, or change the request")


def is_limit_refusal(text: str) -> bool:
    """Whether sbatch refused a job for a limit of an account or of a QOS."""
    return "violates accounting" in text.lower() or "qos policy" in text.lower()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and "--help" not in line]
    return (
        lines[-1].removeprefix("sbatch: error: ").removeprefix("allocation failure: ") if lines else "it says nothing"
    )
