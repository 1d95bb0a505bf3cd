"""What an account may have of a cluster, by what its database tells: in `gpuops doctor`, and before a job is submitted
that Slurm would take, and never start. Pure.

Of the limits of one kind the first one that is set counts: the partition's QOS, the job's QOS (these two the other way
round with the flag OverPartQOS), the user's association, the accounts above it
(https://slurm.schedmd.com/resource_limits.html#hierarchy).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuops.core.errors import QuotaExceeded
from gpuops.core.format import plural, span
from gpuops.core.models import SiteFact
from provisioners.batch.request import JobShape
from provisioners.slurm.commands import ACCOUNT_FIELDS, ASSOCIATION_FIELDS, QOS_FIELDS, Partition, parse_span
from provisioners.slurm.options import Wishes

COLUMNS = {
    "partition": "partition", "qos": "qos", "maxjobs": "jobs at once", "maxjobspu": "jobs at once",
    "maxsubmit": "jobs submitted", "maxsubmitpu": "jobs submitted", "maxwall": "time", "maxtres": "per job",
    "maxtrespu": "at once", "grptres": "for all its users",
}  # fmt: skip
"""The columns of `commands.LIMITS` that limit anything, as people read them."""
ROW_FIELDS = {"assoc": ASSOCIATION_FIELDS, "account": ACCOUNT_FIELDS, "qos": QOS_FIELDS}
USUAL_QOS = "normal"
"""What a job gets where nothing names another."""
OVERRIDES = re.compile(r"(--(account|qos|partition|time|gres|gpus|cpus|ntasks)|-[AqptGcn]).*")
"""Arguments of sbatch's that change what a job asks for, or whose limits it has."""

Row = Mapping[str, str]


@dataclass(frozen=True)
class Limits:
    own: Sequence[Row]
    """The user's associations, one for each account, or for a partition of one."""
    accounts: Mapping[str, Row]
    qos: Mapping[str, Row]
    default_account: str
    default_qos: str
    """Empty where the association decides."""
    untold: str
    """What sacctmgr says where it tells nothing."""

    def association(self, account: str, partition: str) -> Row | None:
        """The one of a partition comes before one of all."""
        rows = [row for row in self.own if row["account"] == account and row["partition"] in ("", partition)]
        return max(rows, key=lambda row: len(row["partition"]), default=None)

    def ancestors(self, account: str) -> Iterator[Row]:
        """An account and those above it."""
        seen: set[str] = set()
        while account in self.accounts and account not in seen:
            seen.add(account)
            yield self.accounts[account]
            account = self.accounts[account]["parentname"]


def parse_limits(text: str) -> Limits:
    """What commands.LIMITS printed."""
    rows: dict[str, list[Row]] = {kind: [] for kind in ROW_FIELDS}
    told = {"default": "", "given": "|", "untold": ""}
    for line in text.splitlines():
        kind, _, rest = line.partition("|")
        values = rest.split("|")
        if kind in rows and len(values) == len(ROW_FIELDS[kind]):
            rows[kind].append(dict(zip(ROW_FIELDS[kind], values, strict=True)))
        elif kind in told:
            told[kind] = told[kind].strip("|") or rest.strip()
    account, _, qos = told["given"].partition("|")
    return Limits(
        rows["assoc"],
        {row["account"]: row for row in rows["account"]},
        {row["name"]: row for row in rows["qos"]},
        account or told["default"],
        qos,
        told["untold"],
    )


# Before a job is submitted.


def refuse_excess(limits: Limits, wishes: Wishes, shape: JobShape, partition: Partition) -> None:
    """Raise QuotaExceeded where a limit lies below what one job asks for, which then would wait for ever. Nothing is
    said of a job whose raw arguments may change what it asks for, or of whom."""
    account = wishes.words.get("account") or limits.default_account
    own = limits.association(account, partition.name)
    if own is None or any(OVERRIDES.fullmatch(word) for word in wishes.raw):
        return
    qos = wishes.words.get("qos") or limits.default_qos or own["defaultqos"] or USUAL_QOS
    chain = _chain(limits, account, own, qos, partition.qos)
    _refuse_time(chain, shape.walltime_s)
    gpus = shape.nodes * shape.gpus
    asked = {"node": shape.nodes, "cpu": shape.nodes * shape.cpus, "gres/gpu": gpus}
    if shape.gpu_type:
        asked[f"gres/gpu:{shape.gpu_type}"] = gpus
    for tres, count in asked.items():
        _refuse_count(chain, tres, count)


def _chain(limits: Limits, account: str, own: Row, qos: str, partition_qos: str) -> list[tuple[str, Row]]:
    """Whose limits a job has, the first one that counts first."""
    named = [(f"qos {name}", limits.qos[name]) for name in (partition_qos, qos) if name in limits.qos]
    if "OverPartQOS" in limits.qos.get(qos, {}).get("flags", ""):
        named.reverse()
    above = [(f"account {row['account']}", row) for row in limits.ancestors(account)]
    return [*named, (f"account {account}", own), *above]


def _refuse_time(chain: Sequence[tuple[str, Row]], walltime_s: float) -> None:
    whose, most = next(((who, text) for who, row in chain if (text := row.get("maxwall"))), ("", ""))
    most_s = parse_span(most)
    if most_s and walltime_s > most_s:
        raise QuotaExceeded(
            f"{whose} gives a job {span(most_s)}, and this one asks for {span(walltime_s)}",
            f"--max-hours {most_s / 3600:.2g}, or another --qos",
        )


def _refuse_count(chain: Sequence[tuple[str, Row]], tres: str, asked: int) -> None:
    kinds = {"maxtres": "a job", "maxtrespu": "one user", "grptres": "all its users together"}
    for column, to_whom in kinds.items():
        found = ((who, most) for who, row in chain if (most := _count(row.get(column, ""), tres)) is not None)
        whose, most = next(found, ("", asked))
        if asked > most:
            what = {"node": "node", "cpu": "core", "gres/gpu": "GPU"}.get(tres, f"{tres.rpartition(':')[2]} GPU")
            raise QuotaExceeded(
                f"{whose} gives {to_whom} {plural(most, what)}, and this job asks for {asked}",
                "ask for less, or another --qos or --account",
            )


def _count(text: str, tres: str) -> int | None:
    """How many of a kind `cpu=8,gres/gpu=4` allows; None where it sets no limit to them."""
    match = re.search(rf"(?:^|,){re.escape(tres)}=([0-9]{{1,9}})(?:,|$)", text)
    return int(match[1]) if match else None


# For doctor.


def describe_limits(limits: Limits) -> list[SiteFact]:
    """Of each account of the user's, of those above it that limit anything, and of each such QOS that they may use."""
    usable = {name for row in limits.own for name in row["qos"].split(",")}
    above = {str(one["account"]): one for row in limits.own for one in limits.ancestors(row["account"])}
    said = [_describe(f"account {row['account']}{_is_default(limits, row)}", row) for row in limits.own]
    said += [_describe(f"account {name}, with all below it", row) for name, row in above.items() if _limits(row)]
    said += [_describe(f"qos {name}", row) for name, row in limits.qos.items() if name in usable and _limits(row)]
    if said:
        return [SiteFact("limits", say) for say in dict.fromkeys(said)]
    why = limits.untold or "sacctmgr names no account of yours"
    return [SiteFact("limits", f"what limits your account has cannot be read: {why}", "ask who runs the cluster")]


def _is_default(limits: Limits, row: Row) -> str:
    others = {one["account"] for one in limits.own} - {limits.default_account}
    return " (the default)" if others and row["account"] == limits.default_account else ""


def _limits(row: Row) -> bool:
    return any(row.get(name) for name in COLUMNS)


def _describe(whose: str, row: Row) -> str:
    """`account phys: qos normal,long, jobs at once 4`."""
    told = [f"{say} {row[name]}" for name, say in COLUMNS.items() if row.get(name)]
    return f"{whose}: {', '.join(told) or 'no limits of its own'}"
