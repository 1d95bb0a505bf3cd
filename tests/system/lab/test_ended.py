"""On hosts: what a lease, Ctrl-C and `down` end, what they leave as it was, and what never gets there."""

from __future__ import annotations

import signal

from tests.conftest import HANG_S, until
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Begin, Laptop, end_lease, ours, root

Pair = tuple[Host, Host]


def test_down_leaves_hosts_as_they_were(begin: Begin, laptop: Laptop, hosts: Pair) -> None:
    counting = begin("deaf")
    counting.kill_the_command()
    done = laptop.run("down", "lab")
    assert done.returncode == 0, done.stderr
    laptop.expect_hosts_clean(*hosts)
    assert not (laptop.home / "ssh" / "lab.conf").exists()


def test_a_lease_ends_the_run_and_never_the_host(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host, more=("--max-hours", "1"))
    run = laptop.start("run", "--", "sleep", "600")
    until(lambda: "sleep 600" in host.processes(), "the run goes on")
    end_lease(host)
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 4, err
    assert "the lease of node0 ended the run" in err
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
