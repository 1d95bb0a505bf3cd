"""Scenarios on what must hold when nobody is there: lost answers, killed commands, silent clients; and the bill."""

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
from gpuops.commands.prove.faults import Broken, Fatal, Missing, NotGuaranteed
from gpuops.commands.prove.sandbox import Bench, dollars
from gpuops.commands.prove.shared_clusters import BOOT_S, adopted, unattended
from gpuops.core.errors import ProviderError, StillBilling
from gpuops.core.format import plural, span
from gpuops.core.models import COSTLESS, Lease, Resource
from gpuops.ledger.store import ClusterRow, Ledger, LedgerJournal
from gpuops.nodes.session import machines_of, send_lease

LEASE_S = 3.0
"""How long the node may still live once the client is silent."""
CREATE_S = 900.0
"""How long the command that is to be killed may take to create something."""
ROUNDING = 0.01
"""By how much two prices may differ, as a part of them."""
LITTLE = 0.01
"""What an account may be off our own count, in $."""


def lost_answer(bench: Bench) -> str:
    one = adopted(bench)
    lost = {resource.id for resource in one.lost if resource.kind == "machine"}
    known = {machine.id for machine in machines_of(bench.ctx, one.row)}
    listed = {resource.id for resource in bench.of(one.row) if resource.kind == "machine"}
    if listed != lost:
        raise Broken(f"{len(lost)} machines were made, and {len(listed)} are there")
    if known != lost:
        raise Broken("the machines that were adopted are not those that were made")
    return f"{len(known)} found by their mark and adopted, none made twice"


def ready(bench: Bench) -> str:
    one = adopted(bench)
    for machine in one.live.machines:
        if machine.state != "running" or not machine.address:
            raise Broken(f"a node answers, and describe calls it '{machine.state}' at '{machine.address}'")
    nodes = plural(len(one.live.machines), "node")
    return f"{nodes} answered hello {span(one.boot_s)} after create was called"


def watchdog(bench: Bench) -> str:
    able = _able(bench)
    one = adopted(bench)
    for machine in one.live.machines:
        argv = bench.ask("self_destruct", machine)
        if (able is True) != (bool(argv) and all(isinstance(word, str) for word in argv)):
            raise Broken(f"self_destruct gives {argv!r}, and the capability says {able!r}")
    send_lease(one.live, Lease(hard_end=bench.ctx.clock.now() + LEASE_S), bench.ctx.clock.now())
    began = bench.ctx.clock.monotonic()
    one.live.close()
    limit_s = LEASE_S + bench.patience_s + bench.core.gone_s
    if not bench.within(limit_s, lambda: all(_ended(bench, machine) for machine in one.live.machines)):
        raise Broken(f"the lease was over, the client silent, and {span(limit_s)} later the provider still has a node")
    took = bench.ctx.clock.monotonic() - began
    return f"{_ended_itself(bench, one.row, able)} {span(took)} after its last client; nothing is listed"


def _able(bench: Bench) -> bool | str:
    """Whether a machine can end itself. Raises NotGuaranteed where it cannot, and costs money."""
    able = bench.core.capabilities["self_destruct"]
    if bench.rented and able is not True:
        raise NotGuaranteed(str(able))
    return able


def _ended_itself(bench: Bench, row: ClusterRow, able: bool | str) -> str:
    """What did, once the rest of its cluster is ended, too."""
    bench.end(row.name)
    if left := bench.of(row):
        raise Broken(f"after its watchdog has fired {left[0].kind} is still listed")
    return "the machine ended itself" if able is True else f"its processes ended themselves ({able})"


def _ended(bench: Bench, machine: Resource) -> bool:
    seen: Resource = bench.ask("describe", machine)
    return seen.state in COSTLESS


def killed(bench: Bench) -> str:
    row = bench.intend("c")
    bench.began(row.name, next((offer.per_hour for offer in bench.offers()), 0.0))
    how = _kill_another(bench, row) if bench.found_by_name and hasattr(signal, "SIGKILL") else _cut_short(bench, row)
    found = bench.within(bench.core.settle_s, lambda: bench.of(row))
    if not found:
        raise Broken("what was made right before the command was killed is not found by its mark")
    with tempfile.TemporaryDirectory() as folder:
        forgetful = dataclasses.replace(bench.ctx)
        forgetful.ledger = Ledger.open(Path(folder))
        try:
            orphans.end(forgetful, [orphans.Stray(bench.request.provider, resource) for resource in found])
        except StillBilling as error:
            raise Broken(f"what a killed command has left cannot be reaped: {error.say}") from error
        finally:
            forgetful.ledger.close()
    if left := [one for one in bench.of(row) if one.bills and one.state not in COSTLESS]:
        raise Broken(f"what a killed command has left is still there after a reap: {left[0].kind}")
    if not bench.cleared(row):
        raise Broken(f"what a killed command has left is not gone {span(bench.core.gone_s)} after a reap")
    bench.end(row.name)
    return f"{how}; {len(found)} found by their mark without a ledger, and ended"


def _kill_another(bench: Bench, row: ClusterRow) -> str:
    """Another process creates, and gets SIGKILL when a machine is there and not yet in the ledger."""
    question = {"home": str(bench.ctx.home), "owner": bench.ctx.owner, "cluster": row.id}
    env = {**bench.ctx.env, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        argv = [sys.executable, "-m", "gpuops.commands.prove.victim"]
        done = subprocess.run(argv, input=json.dumps(question), env=env,
                              capture_output=True, text=True, timeout=CREATE_S, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Broken(f"create has not returned within {span(CREATE_S)}") from None
    if done.returncode != -signal.SIGKILL:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        how = Missing if done.returncode == ProviderError.exit_code else Broken
        raise how(f"the command that was to be killed ended by itself: {said}")
    return "SIGKILL between a machine and its line in the ledger"


class _PowerCut(BaseException):
    """What no provisioner can catch and go on after."""


def _cut_short(bench: Bench, row: ClusterRow) -> str:
    def end() -> None:
        raise _PowerCut

    try:
        bench.create(bench.offers()[0], bench.intent(row), Fatal(LedgerJournal(bench.ctx.ledger, row.id), end))
    except _PowerCut:
        return "cut short between a machine and its line in the ledger"
    raise Broken("create went on after what ends a process")


def boot_deadline(bench: Bench) -> str:
    """Nobody logs in, and the ledger's deadline is later: only what came with the machines can end them."""
    able, clock = _able(bench), bench.ctx.clock
    one = unattended(bench)
    machines = [resource for resource in one.resources if resource.kind == "machine"]
    if any(resource.data.get("ends_itself") is False for resource in one.resources):
        raise NotGuaranteed("the machines of such an offer do not end themselves")
    if any(not machine.data.get("artefact") and not machine.data.get("boot_watch") for machine in machines):
        raise NotGuaranteed("until gpuops has logged in, nothing on the machine ends it")
    if not bench.within(bench.core.settle_s, lambda: machines and not any(_ended(bench, one) for one in machines)):
        raise NotGuaranteed("a machine was gone before it could be seen: what ended it cannot be told")
    limit_s = one.row.boot_deadline - clock.now()  # then it is the guard's
    if not bench.within(limit_s, lambda: all(_ended(bench, machine) for machine in machines)):
        how = Missing if limit_s < bench.request.timeout_min * 60 else Broken  # the money allowed no longer wait
        raise how(f"nobody logged in, and {span(limit_s)} later the provider still has a machine")
    late_s = clock.now() - one.intent.boot_deadline
    if late_s < -BOOT_S / 2:  # two clocks may differ a little
        raise Broken(f"a machine ended {span(-late_s)} before its boot deadline")
    what = _ended_itself(bench, one.row, able)
    return f"{what} {span(max(0.0, late_s))} after its boot deadline; nobody had logged in"


def bill(bench: Bench) -> str:
    """Three prices: what the offer said, what the machines say, what the account has lost when they are gone."""
    one = adopted(bench)
    one.close()
    bench.end(one.row.name)
    told = sum(price["per_hour"] for price in one.row.offer.get("prices") or ())
    shown = sum(machine.per_hour for machine in one.live.machines)
    if abs(told - shown) > ROUNDING * told:
        raise Broken(f"the offer said {dollars(told)}/h, its machines say {dollars(shown)}/h")
    if not bench.rented:
        return "free, and nothing bills"
    said = f"{dollars(told)}/h in the offer and at its machines, {dollars(bench.spent())} by our count"
    after = bench.core.balance()
    if bench.balance_before is None or after is None:
        return f"{said}; the account's balance cannot be asked"
    fell = bench.balance_before - after
    if fell > bench.spent() * 1.5 + LITTLE:
        raise NotGuaranteed(f"{said}, and the account fell by {dollars(fell)}: something else may be billed there")
    return f"{said}; the account fell by {dollars(fell)}"


def nothing_left(bench: Bench) -> str:
    began = bench.ctx.clock.monotonic()
    try:
        bench.close()
    except StillBilling as error:
        raise Broken(error.say) from error
    if left := bench.left():
        raise Broken(f"{len(left)} are still listed: {', '.join(left)}")
    return f"the provider lists nothing of this proof ({span(bench.ctx.clock.monotonic() - began)})"
