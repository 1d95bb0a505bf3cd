"""What is lost, full, mounted or another's: nothing of anybody's is destroyed for it, and all of ours ends."""

from __future__ import annotations

import time

from gpuops.core.models import Lease
from gpuops.guard.schedule import LEASE_MARGIN_S
from gpuops.ledger.store import Ledger
from tests.conftest import until
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Laptop, end_lease, ours, root

MORE = "/srv/more"
SAYS_MORE_WHEN_ASKED = f"echo first; until [ -e {MORE} ]; do sleep 0.1; done; echo last; sleep 600"


def says_more_and_ends(host: Host) -> None:
    """Its run says what nobody hears of yet; then its lease is over."""
    host.run(["touch", MORE], check=True)
    logs = "root/.gpuops-*/lab/n0/runs/sh-1/launcher.out"
    until(lambda: [log.read_bytes() for log in root(host).glob(logs)] == [b"first\nlast\n"], "all that it says")
    end_lease(host)


def project(host: Host, cluster: str = "lab") -> str:
    (folder,) = root(host).glob(f"root/.gpuops-*/{cluster}/n*")
    return "/" + str(folder.relative_to(root(host))) + "/project"


def take_agent_away(host: Host) -> None:
    """Somebody removes it who does not know what it is."""
    (agents,) = root(host).glob("root/.gpuops-*/agent")
    agents.rename(root(host) / "root" / "aside")


def test_a_lost_book_of_hosts_changes_nothing_for_down(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host)
    (laptop.home / "ssh" / "hosts.json").unlink()
    assert [one["nodes"] for one in laptop.clusters()] == [["running"]]
    assert laptop.run("down", "lab").returncode == 0
    laptop.expect_hosts_clean(host)


def test_nodes_whose_agent_somebody_removed_are_ended_by_another(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host)
    take_agent_away(host)
    down = laptop.run("down", "lab", "--force")
    assert down.returncode == 0, down.stderr
    laptop.expect_hosts_clean(host)


def test_down_brings_home_what_was_edited_where_the_agent_was_removed(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host)
    assert laptop.run("push").returncode == 0
    assert host.run(["sh", "-c", f"echo kept > {project(host)}/notes.txt"]).returncode == 0
    take_agent_away(host)
    down = laptop.run("down", "lab")
    assert down.returncode == 0, down.stderr
    assert (laptop.folder / "runs" / "lab-left" / "node0" / "notes.txt").read_text() == "kept\n"
    laptop.expect_hosts_clean(host)


def test_a_run_brings_the_agent_that_was_removed(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host)
    take_agent_away(host)
    run = laptop.run("run", "--", "echo", "it runs")
    assert (run.returncode, run.stdout) == (0, "it runs\n"), run.stderr
    assert laptop.run("down", "lab").returncode == 0
    laptop.expect_hosts_clean(host)


def test_down_ends_the_others_where_somebody_removed_all_of_a_node(lab: Lab, laptop: Laptop) -> None:
    a, b = lab.host("a"), lab.host("b")
    laptop.up(a, b)
    assert laptop.run("push").returncode == 0
    root(b).joinpath(project(b)[1:], "notes.txt").write_text("kept\n")
    assert a.run(["sh", "-c", "rm -rf /root/.gpuops-*"]).returncode == 0
    down = laptop.run("down", "lab")
    assert down.returncode == 0, down.stderr
    assert "node0 was removed on its host, and what was edited there with it" in down.stderr
    assert (laptop.folder / "runs" / "lab-left" / "node1" / "notes.txt").read_text() == "kept\n"
    laptop.expect_hosts_clean(a, b)


def test_what_is_mounted_in_a_project_is_not_emptied(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host)
    assert laptop.run("push").returncode == 0
    data = f"{project(host)}/data"
    mounted = host.run(
        ["sh", "-c", f"mkdir -p /srv/data {data} && echo precious > /srv/data/x && mount --bind /srv/data {data}"]
    )
    assert mounted.returncode == 0, mounted.stderr
    down = laptop.run("down", "lab")
    assert down.returncode == 5, down.stderr
    assert "is mounted from elsewhere" in down.stderr
    assert host.run(["cat", "/srv/data/x"]).stdout == "precious\n"
    assert host.run(["umount", data]).returncode == 0
    assert laptop.run("down", "lab").returncode == 0
    laptop.expect_hosts_clean(host)


def test_a_node_of_an_earlier_cluster_of_that_name_is_left_alone(lab: Lab, laptop: Laptop) -> None:
    a, b = lab.host("a"), lab.host("b")
    laptop.up(b, a)
    assert laptop.run("push").returncode == 0
    root(b).joinpath(project(b)[1:], "precious.txt").write_text("precious")
    b.vanish()
    forced = laptop.run("down", "lab", "--force")
    assert forced.returncode == 0, forced.stderr
    assert "is given up" in forced.stderr
    laptop.expect_hosts_clean(a)
    b.start()
    again = laptop.run("up", "ssh", "--name", "lab", *laptop.naming(b))
    assert again.returncode == 3, again.stderr
    assert "made before" in again.stderr
    left = root(b).joinpath(project(b)[1:], "precious.txt")
    assert left.read_text() == "precious"
    reaped = laptop.run("reap", "--yes")
    assert reaped.returncode == 0, reaped.stderr
    laptop.expect_hosts_clean(a, b)


def test_a_host_that_is_away_costs_the_others_nothing(lab: Lab, laptop: Laptop) -> None:
    """At `down --force`, what was made by hand on the host that answers comes home."""
    a, b = lab.host("a"), lab.host("b")
    laptop.up(a, b)
    assert laptop.run("push").returncode == 0
    root(b).joinpath(project(b)[1:], "notes.txt").write_text("precious")
    lab.cut(a)
    done = laptop.run("down", "lab", "--force")
    assert done.returncode == 0, done.stderr
    assert (laptop.folder / "runs/lab-left/node1/notes.txt").read_text() == "precious"
    laptop.expect_hosts_clean(b)


def test_a_full_disk_keeps_nothing_alive(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    small = host.run(["mount", "-t", "tmpfs", "-o", "size=80m", "none", "/srv"])
    assert small.returncode == 0, small.stderr
    host.run(["sh", "-c", "mkdir /srv/home && mount --bind /srv/home /root"])
    laptop.up(host)
    host.run(["sh", "-c", "cat /dev/zero > /root/filler 2>/dev/null"])
    down = laptop.run("down", "lab")
    assert down.returncode == 0, down.stderr
    until(lambda: not ours(host), "nothing of ours runs")


def test_a_lease_that_ends_while_the_laptop_is_away_loses_no_log(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host, more=("--max-hours", "1"))
    assert laptop.run("run", "--detach", "--", "sh", "-c", SAYS_MORE_WHEN_ASKED).returncode == 0
    lab.cut(host)
    says_more_and_ends(host)
    until(lambda: not ours(host), "the lease ended the node")
    lab.mend(host)
    ledger = Ledger.open(laptop.home)
    (row,) = ledger.clusters()
    ledger.set_cluster(row.id, lease=Lease(hard_end=time.time() - LEASE_MARGIN_S - 1))
    ledger.close()
    until(lambda: not laptop.cluster_states(), "the guard's end of the cluster")
    assert (laptop.folder / "runs/sh-1/logs/node0/launcher.out").read_bytes() == b"first\nlast\n"
    (run,) = laptop.json("runs")["runs"]
    assert run["say"] == "the lease of node0 ended the run"
    laptop.expect_hosts_clean(host)


def test_a_host_that_is_away_when_its_lease_ends_gives_its_logs_when_it_is_back(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host, more=("--max-hours", "1"))
    assert laptop.run("run", "--detach", "--", "sh", "-c", SAYS_MORE_WHEN_ASKED).returncode == 0
    lab.cut(host)
    says_more_and_ends(host)
    until(lambda: not ours(host), "the lease ended the node")
    ledger = Ledger.open(laptop.home)
    (row,) = ledger.clusters()
    ledger.set_cluster(row.id, lease=Lease(hard_end=time.time() - LEASE_MARGIN_S - 1))
    guard_log = laptop.home / "guard.log"
    until(lambda: "does not answer\n" in guard_log.read_text(), "the guard has tried in vain")
    assert ledger.cluster(row.id).state == "up"
    ledger.close()
    lab.mend(host)
    until(lambda: not laptop.cluster_states(), "the guard's end of the cluster")
    assert (laptop.folder / "runs/sh-1/logs/node0/launcher.out").read_bytes() == b"first\nlast\n"
    (run,) = laptop.json("runs")["runs"]
    assert run["say"] == "the lease of node0 ended the run"
    laptop.expect_hosts_clean(host)


def test_a_hosts_words_do_not_steer_the_terminal(lab: Lab, laptop: Laptop) -> None:
    host = lab.host("a")
    laptop.up(host)
    program = root(host) / "usr/bin/ls"
    program.unlink()
    program.write_text("#!/bin/sh\nprintf '\\033]0;owned\\007\\033[2J' >&2\nexit 3\n")
    program.chmod(0o755)
    done = laptop.run("reap")
    assert "\x1b" not in done.stderr + done.stdout
