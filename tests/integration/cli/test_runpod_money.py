"""What RunPod bills: a pod that its end did not end, one that nobody knows of, volumes, a balance, a spend limit."""

from __future__ import annotations

import re

import pytest

from tests.desk import Said
from tests.fakes.runpod import Fault, Pod
from tests.fakes.runpod.faults import deaf_delete, denied
from tests.integration.cli.renter import CREDIT, ENOUGH, POOR, SHORT, UP, Renter, end_all, expect

pytestmark = pytest.mark.usefixtures("no_guard_stays")

# ---- what may still be there


def test_a_delete_that_lies(renter: Renter) -> None:
    renter.deaf(deaf_delete(times=None))
    said = renter.type(*UP, "--json")
    expect(said, "{mark} may still be there and bill $0.70/h", "gpuops down lab", 5, renter)
    assert "lab was to be undone because of this: lab was not ready after" in said.err
    again = renter.type("down", "lab", "--json")
    expect(again, "{mark} may still be there and bill $0.70/h", "gpuops down lab", 5, renter)
    assert [pod.name for pod in renter.fake.running()] == [renter.mark]
    assert renter.live() == ["lab"]
    renter.fake.script.clear()
    assert renter.type("down", "lab") == Said(0, "", "lab is gone\n")
    renter.expect_nothing_left()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            Fault("DELETE /pods/*", status=500, times=None),
            "RunPod failed to end a pod (HTTP 500): Internal Server Error",
        ),
        (Fault("DELETE /pods/*", cut=True, times=None), "RunPod was asked to end a pod: the connection was cut"),
        (denied("DELETE /pods/*"), "the RunPod API key may not end a pod: access denied"),
    ],
)
def test_a_delete_that_fails(renter: Renter, fault: Fault, why: str) -> None:
    renter.deaf(fault)
    said = renter.type(*UP, "--json")
    allowed = (
        "" if "may not" not in why else "see what this key may do: https://console.runpod.io/user/settings; then: "
    )
    expect(said, f"{{mark}} may still be there and bill $0.70/h: {why}", f"{allowed}gpuops down lab", 5, renter)
    assert [pod.name for pod in renter.fake.running()] == [renter.mark]


def test_a_cluster_whose_delete_lies(renter: Renter) -> None:
    """Its members cannot go one by one."""
    renter.fake.balance = 5000.0
    renter.deaf(deaf_delete(at="DELETE /clusters/*", times=None), ranked_s=0.0)
    names = [f"gpuops-{{owner}}-lab-{part}" for part in ("0", "1", "cluster")]
    said = renter.type(*SHORT, "--json")
    say = f"{', '.join(names)} may still be there and bill $52.99/h".replace("{owner}", renter.owner)
    expect(said, say, "gpuops down lab", 5, renter)
    assert {one.status for one in renter.fake.asked("DELETE", "/pods/*")} == {409}
    listed = renter.type("status", "--cloud").out.splitlines()[1:]
    assert sorted(line.split()[0] for line in listed) == [name.replace("{owner}", renter.owner) for name in names]
    renter.fake.script.clear()
    assert renter.type("down", "lab").code == 0
    renter.expect_nothing_left()


def test_what_the_ledger_does_not_know(renter: Renter) -> None:
    assert renter.type("stop").code == 2  # which chooses the mark
    mine = renter.fake.add_pod(f"gpuops-{renter.owner}-old-0")
    stopped = renter.fake.add_pod(f"gpuops-{renter.owner}-older-0", disk=200)
    renter.fake.end(stopped, "EXITED")
    others = [renter.fake.add_pod(name) for name in ("gpuops-00000000-old-0", "comfy", f"gpuops-{renter.owner}")]
    *listed, _, named = renter.type("status", "--cloud").out.splitlines()[1:]
    assert named.endswith("if it is yours, `gpuops reap --owner 00000000` ends it")
    assert [line.split()[:6] for line in listed] == [
        [mine.name, "runpod", "machine", "starting", "$0.70", "no"],
        [stopped.name, "runpod", "machine", "unknown", "$0.03", "no"],  # its disk costs
        [others[0].name, "runpod", "machine", "starting", "$0.70", "no"],
    ]
    asked = renter.type("reap", "--json")
    expect(asked, "cannot ask what to do with 2 orphaned clusters: no terminal",
           "take back what still lives: gpuops reap --adopt; or end it: gpuops reap --yes", 5, renter)  # fmt: skip
    ended = renter.type("reap", "--yes")
    assert ended == Said(0, f"ended {mine.name}\nended {stopped.name}\n", f"note: {named}\n")
    assert {pod.id for pod in renter.fake.running()} == {pod.id for pod in others}
    assert renter.type("reap") == Said(0, "nothing left over\n", f"note: {named}\n")
    end_all(renter.fake)


# ---- volumes


@pytest.mark.parametrize(
    ("words", "say", "hint"),
    [
        (("--volume", "mine"), "there is no network volume 'mine'",
         "name one by its id: yours ({yours}, EU-RO-1), twice ({twice0}, EU-RO-1), twice ({twice1}, US-KS-2)"),
        (("--volume", "twice"), "more than one network volume is called 'twice'",
         "name one by its id: twice ({twice0}, EU-RO-1), twice ({twice1}, US-KS-2)"),
        (("--volume", "yours", "--region", "US-KS-2"), "the network volume 'yours' is in EU-RO-1, not in US-KS-2",
         "leave out --region"),
    ],
)  # fmt: skip
def test_volumes(renter: Renter, words: tuple[str, ...], say: str, hint: str) -> None:
    made = [("yours", "EU-RO-1"), ("twice", "EU-RO-1"), ("twice", "US-KS-2")]
    service = renter.fake.service
    ids = [
        service.create_volume(service.own, {"name": name, "size": 10, "dataCenter": place}).id for name, place in made
    ]
    filled = hint.format(yours=ids[0], twice0=ids[1], twice1=ids[2])
    expect(renter.type(*UP, *words, "--json"), say, filled, 2, renter)
    renter.expect_nothing_left()


def test_a_volume_is_where_it_is(renter: Renter) -> None:
    service = renter.fake.service
    volume = service.create_volume(service.own, {"name": "yours", "size": 10, "dataCenter": "EU-RO-1"})
    said = renter.type(*UP, "--volume", "yours", "--dry-run")
    assert "EU-RO-1" in said.out
    assert "note: the network volume yours is at /workspace; it costs money with a pod or without" in said.out
    renter.deaf()
    renter.type(*UP, "--volume", "yours")
    (asked,) = renter.fake.asked("POST", "/pods")
    assert asked.body["mounts"] == {"network": [{"volumeId": volume.id, "path": "/workspace"}]}
    assert asked.body["dataCenterIds"] == ["EU-RO-1"]
    assert list(renter.fake.volumes) == [volume.id]
    renter.expect_nothing_left()


# ---- money


def test_a_balance_that_does_not_last_an_hour(money: Renter) -> None:
    money.fake.balance = 0.35
    said = money.type(*UP, "--json")
    expect(said, f"{POOR}: insufficient balance", CREDIT, 3, money)
    assert re.search(r"note: the balance of \$0.35 lasts \d+:\d\d min at \$0.70/h: some providers rent for an hour at "
                     "least", said.err)  # fmt: skip
    money.expect_nothing_left()


def test_a_spend_limit_that_is_known_is_not_run_into(money: Renter) -> None:
    money.fake.balance = 1000.0
    (other,) = [money.fake.add_pod("mine", gpu={"id": "NVIDIA B200", "count": 8})]
    said = money.type(*UP[:5], "--gpu-type", "B200", "--gpus", "8", "--json")
    expect(said, "$47.85/h is too much: the account may spend $80.00/h and spends $47.85/h already",
           "end something, at the provider's console if need be, ask for less, or have the limit raised there", 3,
           money)  # fmt: skip
    assert money.fake.asked("POST", "/pods") == []
    money.fake.end(other, "GONE")
    money.expect_nothing_left()


def test_a_balance_that_nobody_tells(renter: Renter) -> None:
    """It is no reason to stop."""
    renter.deaf()
    said = renter.type(*UP)
    assert "not yet protected" in said.err
    assert len(renter.fake.asked("POST", "/pods")) == 1
    assert renter.fake.asked("POST", "/graphql") == []
    renter.expect_nothing_left()


def test_what_members_without_numbers_cost_is_what_was_agreed_to(
    renter: Renter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their price is known before their ranks are, and none of them is waited for at another one."""
    renter.fake.balance = 5000.0
    renter.deaf(ranked_s=600.0)
    monkeypatch.setattr(Pod, "cost", property(lambda _: 100.0))
    said = renter.type(*ENOUGH, "--max-price", "60")
    assert said.code == 3, said.err
    assert "lab costs $200.00/h, as runpod tells it now, and $" in said.err
    renter.expect_nothing_left()
