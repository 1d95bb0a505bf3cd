"""Scenarios of failure: lost answers, killed commands, unreachable clients, and nodes that must end themselves; and the
scenario on the bill, which needs ended machines."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from gpuops.clusters import orphans
from gpuops.commands.prove.fault_injection import ContractBroken, KillingJournal, NotGuaranteed, NotRunnable
from gpuops.commands.prove.sandbox import Sandbox, dollars
from gpuops.commands.prove.shared_clusters import BOOT_DEADLINE_S, adopted, unattended
from gpuops.core.errors import ProviderError, StillBilling
from gpuops.core.format import plural, span
from gpuops.core.models import COSTLESS, Lease, Resource, ResourceState
from gpuops.ledger.store import ClusterRow, Ledger, LedgerJournal
from gpuops.nodes.session import machines_of, send_lease

LEASE_LEFT_S = 3.0
"""Seconds of lease that the node has left when its client falls silent."""
CREATE_TIMEOUT_S = 900.0
"""How long the command that is to be killed may take to create a machine."""
PRICE_TOLERANCE = 0.01
"""Fraction by which two prices may differ: providers round."""
BALANCE_TOLERANCE = 0.01
"""Dollars by which the account may differ from our own count."""


def lost_answer(sandbox: Sandbox) -> str:
    """What a `create` made whose answer was lost is found by its tag and adopted, and nothing is made twice."""
    cluster = adopted(sandbox)
    lost = {resource.id for resource in cluster.lost if resource.is_machine}
    known = {machine.id for machine in machines_of(sandbox.ctx, cluster.row)}
    listed = {resource.id for resource in sandbox.list_cluster_resources(cluster.row) if resource.is_machine}
    if listed != lost:
        raise ContractBroken(f"{len(lost)} machines were made, and {len(listed)} are there")
    if known != lost:
        raise ContractBroken("the machines that were adopted are not those that were made")
    return f"{len(known)} found by their mark and adopted, none made twice"


def ready(sandbox: Sandbox) -> str:
    """Every node of the adopted cluster runs and answers."""
    cluster = adopted(sandbox)
    for machine in cluster.session.machines:
        if machine.state != ResourceState.RUNNING or not machine.address:
            raise ContractBroken(f"a node answers, and describe calls it '{machine.state}' at '{machine.address}'")
    nodes = plural(len(cluster.session.machines), "node")
    return f"{nodes} answered hello {span(cluster.boot_s)} after create was called"


def watchdog(sandbox: Sandbox) -> str:
    """A node whose lease is over while its client is silent ends itself."""
    able = _self_destruct_capability(sandbox)
    cluster = adopted(sandbox)
    for machine in cluster.session.machines:
        argv = sandbox.ask("self_destruct", machine)
        if (able is True) != (bool(argv) and all(isinstance(word, str) for word in argv)):
            raise ContractBroken(f"self_destruct gives {argv!r}, and the capability says {able!r}")
    send_lease(cluster.session, Lease(hard_end=sandbox.ctx.clock.now() + LEASE_LEFT_S), sandbox.ctx.clock.now())
    began = sandbox.ctx.clock.monotonic()
    cluster.session.close()
    limit_s = LEASE_LEFT_S + sandbox.patience_s + sandbox.core.gone_s
    if not sandbox.poll_until(
        limit_s, lambda: all(_has_ended(sandbox, machine) for machine in cluster.session.machines)
    ):
        raise ContractBroken(
            f"the lease was over, the client silent, and {span(limit_s)} later the provider still has a node"
        )
    took = sandbox.ctx.clock.monotonic() - began
    return f"{_describe_own_end(sandbox, cluster.row, able)} {span(took)} after its last client; nothing is listed"


def _self_destruct_capability(sandbox: Sandbox) -> bool | str:
    """The capability `self_destruct`. Raises NotGuaranteed where a rented machine cannot end itself."""
    able = sandbox.core.capabilities["self_destruct"]
    if sandbox.rented and able is not True:
        raise NotGuaranteed(str(able))
    return able


def _describe_own_end(sandbox: Sandbox, row: ClusterRow, able: bool | str) -> str:
    """What ended the machine, as a clause, after the rest of its cluster was ended. `able`: the capability."""
    sandbox.end_cluster(row.name)
    if remaining := sandbox.list_cluster_resources(row):
        raise ContractBroken(f"after its watchdog has fired {remaining[0].kind} is still listed")
    return "the machine ended itself" if able is True else f"its processes ended themselves ({able})"


def _has_ended(sandbox: Sandbox, machine: Resource) -> bool:
    described: Resource = sandbox.ask("describe", machine)
    return described.state in COSTLESS


def killed(sandbox: Sandbox) -> str:
    """What a command made right before it was killed is found by its tag and ended, without a ledger."""
    row = sandbox.record_cluster("c")
    sandbox.start_bill(row.name, sandbox.list_offers()[0].per_hour)
    how = (
        _kill_another(sandbox, row)
        if sandbox.found_by_name and hasattr(signal, "SIGKILL")
        else _cut_short(sandbox, row)
    )
    resources = sandbox.poll_until(sandbox.core.settle_s, lambda: sandbox.list_cluster_resources(row))
    if not resources:
        raise ContractBroken("what was made right before the command was killed is not found by its mark")
    with tempfile.TemporaryDirectory() as folder:
        forgetful = dataclasses.replace(sandbox.ctx)
        forgetful.ledger = Ledger.open(Path(folder))
        try:
            orphans.destroy_orphans(
                forgetful, [orphans.Orphan(sandbox.request.provider, resource) for resource in resources]
            )
        except StillBilling as error:
            raise ContractBroken(f"what a killed command has left cannot be reaped: {error.message}") from error
        finally:
            forgetful.ledger.close()
    billing = [item for item in sandbox.list_cluster_resources(row) if item.bills and item.state not in COSTLESS]
    if billing:
        raise ContractBroken(f"what a killed command has left is still there after a reap: {billing[0].kind}")
    if not sandbox.destroy_until_gone(row):
        raise ContractBroken(f"what a killed command has left is not gone {span(sandbox.core.gone_s)} after a reap")
    sandbox.end_cluster(row.name)
    return f"{how}; {len(resources)} found by their mark without a ledger, and ended"


def _kill_another(sandbox: Sandbox, row: ClusterRow) -> str:
    """Another process creates, and gets SIGKILL when a machine is there and not yet in the ledger."""
    question = {"home": str(sandbox.ctx.home), "owner": sandbox.ctx.owner, "cluster": row.id}
    env = {**sandbox.ctx.env, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        argv = [sys.executable, "-m", "gpuops.commands.prove.killed_process"]
        done = subprocess.run(argv, input=json.dumps(question), env=env,
                              capture_output=True, text=True, timeout=CREATE_TIMEOUT_S, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ContractBroken(f"create has not returned within {span(CREATE_TIMEOUT_S)}") from None
    if done.returncode != -signal.SIGKILL:
        last_line = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        how = NotRunnable if done.returncode == ProviderError.exit_code else ContractBroken
        raise how(f"the command that was to be killed ended by itself: {last_line}")
    return "SIGKILL between a machine and its line in the ledger"


class _PowerCut(BaseException):
    """Raised like a power cut: a provisioner that catches Exception does not catch it."""


def _cut_short(sandbox: Sandbox, row: ClusterRow) -> str:
    """`create` is ended by an exception at the point where `_kill_another` kills its process."""

    def end() -> None:
        raise _PowerCut

    try:
        sandbox.create(
            sandbox.list_offers()[0],
            sandbox.make_intent(row),
            KillingJournal(LedgerJournal(sandbox.ctx.ledger, row.id), end),
        )
    except _PowerCut:
        return "cut short between a machine and its line in the ledger"
    raise ContractBroken("create went on after what ends a process")


def boot_deadline(sandbox: Sandbox) -> str:
    """A machine that gpuops never logs in to ends itself at its boot deadline; the ledger's deadline is later."""
    able, clock = _self_destruct_capability(sandbox), sandbox.ctx.clock
    cluster = unattended(sandbox)
    machines = [resource for resource in cluster.resources if resource.is_machine]
    if any(resource.data.get("ends_itself") is False for resource in cluster.resources):
        raise NotGuaranteed("the machines of such an offer do not end themselves")
    if any(not machine.data.get("artefact") and not machine.data.get("boot_watch") for machine in machines):
        raise NotGuaranteed("until gpuops has logged in, nothing on the machine ends it")
    if not sandbox.poll_until(
        sandbox.core.settle_s, lambda: machines and not any(_has_ended(sandbox, machine) for machine in machines)
    ):
        raise NotGuaranteed("a machine was gone before it could be seen: what ended it cannot be told")
    limit_s = cluster.row.boot_deadline - clock.now()  # then it is the guard's
    if not sandbox.poll_until(limit_s, lambda: all(_has_ended(sandbox, machine) for machine in machines)):
        # Where the money allowed no longer wait, nothing is shown.
        how = NotRunnable if limit_s < sandbox.request.timeout_min * 60 else ContractBroken
        raise how(f"nobody logged in, and {span(limit_s)} later the provider still has a machine")
    late_s = clock.now() - cluster.intent.boot_deadline
    if late_s < -BOOT_DEADLINE_S / 2:  # two clocks may differ a little
        raise ContractBroken(f"a machine ended {span(-late_s)} before its boot deadline")
    what = _describe_own_end(sandbox, cluster.row, able)
    return f"{what} {span(max(0.0, late_s))} after its boot deadline; nobody had logged in"


def bill(sandbox: Sandbox) -> str:
    """Compare three prices: the offer's, the machines', and what the account lost once they are gone."""
    cluster = adopted(sandbox)
    cluster.close()
    sandbox.end_cluster(cluster.row.name)
    offered = cluster.row.offered_per_hour
    reported = sum(machine.per_hour for machine in cluster.session.machines)
    if abs(offered - reported) > PRICE_TOLERANCE * offered:
        raise ContractBroken(f"the offer said {dollars(offered)}/h, its machines say {dollars(reported)}/h")
    if not sandbox.rented:
        return "free, and nothing bills"
    agreed = f"{dollars(offered)}/h in the offer and at its machines, {dollars(sandbox.dollars_spent())} by our count"
    after = sandbox.core.balance()
    if sandbox.balance_before is None or after is None:
        return f"{agreed}; the account's balance cannot be asked"
    fell = sandbox.balance_before - after
    if fell > sandbox.dollars_spent() * 1.5 + BALANCE_TOLERANCE:
        raise NotGuaranteed(f"{agreed}, and the account fell by {dollars(fell)}: something else may be billed there")
    return f"{agreed}; the account fell by {dollars(fell)}"


def nothing_left(sandbox: Sandbox) -> str:
    """After all clusters of the proof were ended the provider lists nothing of it."""
    began = sandbox.ctx.clock.monotonic()
    try:
        sandbox.close()
    except StillBilling as error:
        raise ContractBroken(error.message) from error
    if tags := sandbox.list_remaining_tags():
        raise ContractBroken(f"{len(tags)} are still listed: {', '.join(tags)}")
    return f"the provider lists nothing of this proof ({span(sandbox.ctx.clock.monotonic() - began)})"
