"""On hosts that are cut off, vanish or start anew: the run goes on or ends everywhere, and no byte of a log is lost."""

from __future__ import annotations

import time

import pytest

from tests.conftest import until
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Begin, Laptop

Pair = tuple[Host, Host]


def test_every_login_is_cut(begin: Begin, hosts: Pair) -> None:
    counting = begin()
    for host in hosts:
        assert host.kill_sessions()
    counting.wait_for(200)
    counting.enough()
    done = counting.end()
    assert done.returncode == 0, done.stderr
    counting.expect_every_byte()


def test_the_laptop_is_cut_off_for_a_while(begin: Begin, lab: Lab, laptop: Laptop, hosts: Pair) -> None:
    """For a minute, in which every login dies. The run goes on; what was missed comes at the next byte."""
    counting = begin()
    for host in hosts:
        lab.cut(host)
    time.sleep(60)
    counting.wait_beside()
    for host in hosts:
        lab.mend(host)
    wrote = [counting.beside(who).read_bytes() for who in (0, 1)]
    until(lambda: all(len(counting.home(who)) > len(wrote[who]) for who in (0, 1)), "what was missed")
    counting.enough()
    done = counting.end()
    assert done.returncode == 0, done.stderr
    counting.expect_every_byte()
    assert [line.split()[0] for line in laptop.run("status").stdout.splitlines()].count("lab") == 1


def test_the_network_between_the_hosts_is_cut(begin: Begin, lab: Lab, hosts: Pair) -> None:
    """Neither can be told by the other: each notices the silence, and both are reached from here."""
    counting = begin("deaf")
    lab.cut(*hosts)
    done = counting.end()
    assert done.returncode == 4, done.stderr
    assert "node" in done.stderr.splitlines()[-2]
    counting.expect_nothing_left()
    counting.expect_every_byte()


@pytest.mark.parametrize("alone", [False, True], ids=["watched", "with the command dead"])
def test_a_host_vanishes(begin: Begin, laptop: Laptop, hosts: Pair, alone: bool) -> None:
    counting = begin("deaf")
    if alone:
        counting.kill_the_command()
    hosts[1].vanish()
    if not alone:
        done = counting.end()
        assert done.returncode == 4, done.stderr
        assert "node1" in done.stderr.splitlines()[-2]
    counting.expect_nothing_left()
    wrote = counting.beside(0).read_bytes()
    until(lambda: counting.home(0).startswith(wrote), "the bytes of the host that is there")
    assert laptop.run("status").returncode == 0


def test_a_host_is_started_anew(begin: Begin, laptop: Laptop, hosts: Pair) -> None:
    """Its run is lost; its files, and the cluster, are not."""
    counting = begin("saving")
    project = counting.node(1) / "project"
    (project / "made-by-hand.txt").write_text("precious")
    hosts[1].reboot()
    done = counting.end()
    assert done.returncode == 4, done.stderr
    counting.expect_nothing_left()
    assert laptop.run("run", "--all-nodes", "--", "true").returncode == 0
    down = laptop.run("down", "lab")
    assert down.returncode == 0, down.stderr
    (saved,) = (laptop.folder / "runs").rglob("made-by-hand.txt")
    assert saved.read_text() == "precious"
    laptop.expect_hosts_clean(*hosts)
