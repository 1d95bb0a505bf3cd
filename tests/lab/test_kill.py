"""On hosts: whoever dies, the others stop, nothing of the run is left, and no byte of a log is lost or doubled."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.counting import PLAIN, TORCHRUN
from tests.conftest import until
from tests.lab.hosts import Host, Lab
from tests.lab.laptop import HostCounting, Laptop, ours, root

Pair = tuple[Host, Host]
Begin = Callable[..., HostCounting]


@pytest.fixture
def hosts(lab: Lab, laptop: Laptop) -> Pair:
    pair = lab.host("a"), lab.host("b")
    laptop.up(*pair)
    return pair


@pytest.fixture
def begin(laptop: Laptop, hosts: Pair) -> Begin:
    def make(*mood: str, kind: tuple[str, ...] = PLAIN, flags: tuple[str, ...] = ()) -> HostCounting:
        counting = HostCounting(laptop, Path("/srv/side"), kind, hosts=hosts)
        return counting.start(*mood, flags=flags)

    return make


def kill_the_command(counting: HostCounting) -> None:
    """As when the laptop is shut: the command is gone, and nobody says goodbye."""
    counting.process.kill()
    counting.process.wait()


def ended(counting: HostCounting) -> dict[str, object]:
    """The verdict, once the guard has brought everything home."""
    until(lambda: counting.verdict()["state"] == "home", "the guard's work")
    return counting.verdict()


@pytest.mark.parametrize(
    ("what", "kind", "code", "say"),
    [
        ("worker", TORCHRUN, 1, "rank 1 on node1 was ended by SIGKILL"),
        ("launcher", TORCHRUN, 1, "torchrun on node1 was ended by SIGKILL"),
        ("agent", PLAIN, 4, "the run was lost on node1: "),
        ("watchdog", PLAIN, 4, "the run was lost on node1: "),
    ],
)
@pytest.mark.parametrize("alone", [False, True], ids=["watched", "with the command dead"])
def test_a_process_is_killed_on_a_host(
    begin: Begin, what: str, kind: tuple[str, ...], code: int, say: str, alone: bool
) -> None:
    counting = begin("deaf", kind=kind)
    if alone:
        kill_the_command(counting)
        counting.kill(what, 1)
        assert say in str(ended(counting)["say"])
    else:
        counting.kill(what, 1)
        done = counting.end()
        assert done.returncode == code, done.stderr
        assert any(line.startswith(say) for line in done.stderr.splitlines()), done.stderr
        assert done.stderr.splitlines()[-1].startswith("hint: ")
    counting.expect_nothing_left()
    counting.expect_every_byte()


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
    assert laptop.run("status").stdout.count("lab") == 1


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
        kill_the_command(counting)
    hosts[1].vanish()
    if not alone:
        done = counting.end()
        assert done.returncode == 4, done.stderr
        assert "node1" in done.stderr.splitlines()[-2]
    counting.expect_nothing_left()
    wrote = counting.beside(0).read_bytes()
    until(lambda: counting.home(0).startswith(wrote), "the bytes of the host that is there")
    assert laptop.run("status").returncode == 0


def test_the_logs_go_on_at_the_next_byte_after_the_command_died(begin: Begin, laptop: Laptop) -> None:
    counting = begin()
    kill_the_command(counting)
    counting.wait_beside(2000)
    follow = laptop.start("logs", "-f")
    counting.enough()
    out, err = follow.communicate(timeout=120)
    assert follow.returncode == 0, err
    assert out.count("counts") >= 40
    ended(counting)
    counting.expect_every_byte()
    counting.expect_nothing_left()


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


def test_down_leaves_hosts_as_they_were(begin: Begin, laptop: Laptop, hosts: Pair) -> None:
    counting = begin("deaf")
    kill_the_command(counting)
    done = laptop.run("down", "lab")
    assert done.returncode == 0, done.stderr
    laptop.expect_hosts_clean(*hosts)
    assert not (laptop.home / "ssh" / "lab.conf").exists()


def test_a_lease_ends_the_run_and_never_the_host(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host, more=("--max-hours", "0.003"))
    done = laptop.run("run", "--", "sleep", "600")
    assert done.returncode == 4, done.stderr
    assert "the lease of node0 ended the run" in done.stderr
    until(lambda: not ours(host), "every process of ours has ended")
    assert laptop.run("down").returncode == 0
    laptop.expect_hosts_clean(host)
    assert host.run(["true"]).returncode == 0


def test_ctrl_c_stops_the_run_and_keeps_the_cluster(begin: Begin, laptop: Laptop) -> None:
    counting = begin()
    counting.process.send_signal(signal.SIGINT)
    done = counting.end()
    assert done.returncode == 130, done.stderr
    counting.expect_nothing_left()
    counting.expect_every_byte()
    assert [one["state"] for one in laptop.clusters()] == ["up"]


def test_secrets_reach_the_run_and_nothing_else(laptop: Laptop, hosts: Pair) -> None:
    """Canaries: in `.env`, in the environment, in a key's place: not one byte of them gets to a host."""
    canary, secret = "canary-5f1e7a", "sesame-0c44bb"
    laptop.env |= {"AWS_SECRET_ACCESS_KEY": canary, "RUNPOD_API_KEY": canary, "SSH_AUTH_SOCK": f"/tmp/{canary}"}
    laptop.env |= {"TOKEN": secret}
    laptop.write(".env", f"RUNPOD_API_KEY={canary}\n")
    show = "env; cat /proc/$PPID/cmdline /proc/*/cmdline | tr '\\0' ' '"
    done = laptop.run(
        "run", "--secret", "TOKEN", "--", "sh", "-c", f"test ${{#TOKEN}} = 13 && ({show}) | grep -v TOKEN"
    )
    assert done.returncode == 0, done.stderr
    assert canary not in done.stdout + done.stderr
    identity = laptop.lab.identity.read_text().splitlines()[2]
    for host in hosts:
        found = host.run(["grep", "-rlE", f"{canary}|{identity}", "/root", "/srv", "/var/log"])
        assert found.stdout == "", found.stdout
        assert host.run(["grep", "-rl", secret, "/root"]).stdout == "", "a secret is in no file"
    assert root(hosts[0]).exists()
