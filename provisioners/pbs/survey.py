"""What `gpuops doctor` tells of a PBS cluster: queues, what is free of them now, the user's limits. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.format import plural
from gpuops.core.models import SiteFact
from provisioners.batch.survey import describe_queue
from provisioners.pbs.site import Queue, Site, describe_nodes, part_of

ENTRY = re.compile(r"\[([ugpo]):([^=\[\]]+)=([^\[\]]+)\]")
"""`[u:PBS_GENERIC=4]`: of a limit, for whom and how much."""
LIMITS = {"max_run": "at once", "max_queued": "in the queue", "queued_jobs_threshold": "waiting"}
PLAIN_LIMITS = {
    "max_user_run": ("you", "at once"),
    "max_group_run": ("your group", "at once"),
    "max_running": ("all users", "at once"),
    "max_user_res": ("you", "at once"),
    "max_group_res": ("your group", "at once"),
}
"""The older ones, which are numbers."""
UNITS = {"ngpus": "GPUs", "ncpus": "cores", "nodect": "nodes"}


@dataclass(frozen=True)
class Person:
    """Whose limits are meant."""

    user: str
    groups: Sequence[str]
    """The first is that of this user's jobs."""


def parse_person(text: str) -> Person:
    """What commands.WHO printed."""
    lines = [*text.splitlines(), "", ""]
    return Person(lines[0].strip(), lines[1].split())


def survey_site(site: Site, person: Person) -> list[SiteFact]:
    runs = [queue for queue in site.queues if queue.is_open and not _destinations(queue)]
    told = [queue for queue in runs if not site.nodes or any(node.gpus for node in site.nodes_of(queue))]
    remarks = {
        "without GPUs": [queue.name for queue in runs if queue not in told],
        "closed now": [queue.name for queue in site.queues if not queue.is_open],
    }
    say = f"PBS {site.version}".strip() + f", {plural(len(site.queues), 'queue')}"
    say += "".join(f", {what}: {', '.join(names)}" for what, names in remarks.items() if names)
    routes = [f"{queue.name} hands jobs on to {_destinations(queue)}" for queue in site.queues if _destinations(queue)]
    return [
        SiteFact("cluster", "; ".join([say, *routes])),
        *(SiteFact("queue", _describe(site, queue, person)) for queue in told),
        *(SiteFact("limits", say) for say in _describe_limits(site, told, person)),
    ]


def _destinations(queue: Queue) -> str:
    return str(queue.facts.get("route_destinations", ""))


def _describe(site: Site, queue: Queue, person: Person) -> str:
    nodes = site.nodes_of(queue)
    say = describe_queue(
        f"queue {queue.name}",
        describe_nodes(nodes) if site.nodes else "its nodes are not told",
        sum(node.free_gpus for node in nodes),
        sum(node.gpus for node in nodes),
        is_default=queue.name == site.default,
        max_s=queue.max_s,
        default_s=queue.default_s,
    )
    most, least = (_without_time(part_of(queue.facts, f"resources_{word}")) for word in ("max", "min"))
    say += f", at most {most}" if most else ""
    say += f", at least {least}" if least else ""
    return say + ("" if may_use(queue.facts, person) else "; not for you (acl_users or acl_groups)")


def _without_time(limits: Mapping[str, str]) -> str:
    return ", ".join(_amount(value, name) for name, value in limits.items() if name != "walltime")


def _amount(value: str, resource: str) -> str:
    return f"{value} {UNITS.get(resource, resource)}"


def may_use(facts: Mapping[str, Any], person: Person) -> bool:
    """Whether a queue's lists let somebody in. `+` and `-` before a name let in and keep out, `@…` is for hosts."""
    for kind, names in (("user", [person.user]), ("group", person.groups)):
        if str(facts.get(f"acl_{kind}_enable", "")) == "True" and not _is_listed(facts.get(f"acl_{kind}s"), names):
            return False
    return True


def _is_listed(entries: Any, names: Collection[str]) -> bool:
    words = [word.strip() for word in str(entries or "").split(",")]
    found = {word.lstrip("+").partition("@")[0] for word in words if not word.startswith("-")}
    barred = {word[1:].partition("@")[0] for word in words if word.startswith("-")}
    return any(name not in barred and not found.isdisjoint({name, "*"}) for name in names)


def _describe_limits(site: Site, queues: Sequence[Queue], person: Person) -> list[str]:
    places = [("the whole cluster", site.server), *((f"queue {queue.name}", queue.facts) for queue in queues)]
    found = [f"{name}: {', '.join(limits)}" for name, facts in places if (limits := limits_of(facts, person))]
    return found or ["PBS tells of no limits of your account"]


def limits_of(facts: Mapping[str, Any], person: Person) -> list[str]:
    """`you 2 jobs at once`, `your group phys 16 GPUs at once`: what a queue or the server allows."""
    said = []
    for name, when in LIMITS.items():
        told = {"jobs": facts.get(name, ""), **part_of(facts, f"{name}_res")}
        for resource, text in told.items():
            said += [f"{who} {_amount(most, resource)} {when}" for who, most in _meant(str(text), person)]
    for name, (who, when) in PLAIN_LIMITS.items():
        told = part_of(facts, name) or {"jobs": str(facts.get(name, ""))}
        said += [f"{who} {_amount(most, resource)} {when}" for resource, most in told.items() if most]
    return said


def _meant(text: str, person: Person) -> list[tuple[str, str]]:
    """Of a limit's entries those that count for somebody: one by name goes before the one for everybody else."""
    limits = {(kind, name.strip(" \"'")): most.strip() for kind, name, most in ENTRY.findall(text)}
    group = person.groups[0] if person.groups else ""
    found = {
        "you": limits.get(("u", person.user), limits.get(("u", "PBS_GENERIC"))),
        f"your group {group}": limits.get(("g", group), limits.get(("g", "PBS_GENERIC"))),
        "each project": limits.get(("p", "PBS_GENERIC")),
        "all users": limits.get(("o", "PBS_ALL")),
    }
    return [(who, most) for who, most in found.items() if most is not None]
