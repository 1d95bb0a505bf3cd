"""Machines that were rented with nothing of ours on them become nodes: key, agent, watchdog, a whole run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S, until
from tests.fakes import landlord
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Laptop, end_lease, ours, root

KEY = "/etc/ssh/ssh_host_ed25519_key"
PROGRAM = "open('model.pt', 'w').write('learnt'); print('worked')\n"


def public(host: Host) -> str:
    return " ".join((root(host) / f"{KEY[1:]}.pub").read_text().split()[:2])


@pytest.fixture
def houses(lab: Lab, laptop: Laptop, tmp_path: Path) -> Any:
    """`houses(n)`: so many hosts to be let, each with a key that went through the provider."""
    folder = tmp_path / "landlord"
    folder.mkdir()
    laptop.env["LANDLORD"] = str(folder)
    laptop.env["PYTHONPATH"] = ":".join(landlord.settle(tmp_path / "site"))
    laptop.write("work.py", PROGRAM)

    def build(count: int, **more: object) -> list[Host]:
        hosts = [lab.host(f"h{number}", sshd_options=[f"HostKey {KEY}"]) for number in range(count)]
        for host in hosts:
            host.stop_sshd()
            host.run(["rm", "-f", KEY, f"{KEY}.pub"])
            host.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", KEY], check=True)
            host.start_sshd()
        (folder / "houses.json").write_text(json.dumps([
            {"address": host.address, "port": host.port, "host_key": public(host), "identity": str(lab.identity),
             "throwaway_key": True, **more}
            for host in hosts
        ]))  # fmt: skip
        return hosts

    return build


def test_from_bare_machines_to_results_and_nothing_left(laptop: Laptop, houses: Any) -> None:
    hosts = houses(2)
    first = [public(host) for host in hosts]
    done = laptop.run("run", "--on", "landlord", "--nodes", "2", "--yes", "--all-nodes", "--", "python3", "work.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("worked") == 2
    assert "not yet protected" in done.stderr
    now = [public(host) for host in hosts]
    assert not set(first) & set(now), "the key that went through the provider is still in use"
    assert not list((Path(laptop.env["LANDLORD"]) / "let").iterdir())
    assert [path.read_text() for path in laptop.folder.glob("runs/*/out/**/model.pt")]


def test_the_new_key_is_the_one_that_is_trusted(lab: Lab, laptop: Laptop, houses: Any) -> None:
    (host,) = houses(1)
    before = public(host)
    up = laptop.run("up", "landlord", "--name", "lab", "--yes")
    assert up.returncode == 0, up.stderr
    config = laptop.home / "ssh" / "lab.known_hosts"
    assert public(host).split()[1] in config.read_text()
    assert before.split()[1] not in config.read_text()
    by_hand = subprocess.run(
        [*lab.enter, "ssh", "-F", str(laptop.home / "ssh/lab.conf"), "gpuops-lab-0", "echo", "in"],
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert by_hand.stdout == "in\n", by_hand.stderr
    again = laptop.run("run", "--cluster", "lab", "--", "python3", "work.py")
    assert again.returncode == 0, again.stderr
    assert laptop.run("down", "lab").returncode == 0


def test_a_lease_ends_the_machine_from_within(laptop: Laptop, houses: Any) -> None:
    """Nobody at home: the node asks its provider for its own end."""
    (host,) = houses(1)
    up = laptop.run("up", "landlord", "--name", "lab", "--yes", "--max-hours", "1")
    assert up.returncode == 0, up.stderr
    end_lease(host)
    ended = root(host) / "srv/ended"
    until(lambda: ended.exists() and ended.read_text(), "the node asks for its end")
    assert ended.read_text() == "0\n"


def test_the_watchdog_of_the_machine_is_told_how_to_revive(laptop: Laptop, houses: Any) -> None:
    (host,) = houses(1, boot_watch="/run/gpuops")
    up = laptop.run("up", "landlord", "--name", "lab", "--yes")
    assert up.returncode == 0, up.stderr
    assert "no watchdog came with this machine" in up.stderr  # there is no such folder
    assert laptop.run("down", "lab").returncode == 0

    host.run(["mkdir", "-p", "/run/gpuops"], check=True)
    host.run(["sh", "-c", "echo 1 >/run/gpuops/pid"], check=True)
    # The key it has now is the one that it is let with next.
    folder = Path(laptop.env["LANDLORD"])
    (house,) = json.loads((folder / "houses.json").read_text())
    (folder / "houses.json").write_text(json.dumps([{**house, "host_key": public(host)}]))
    up = laptop.run("up", "landlord", "--name", "next", "--yes")
    assert up.returncode == 0, up.stderr
    assert "no watchdog" not in up.stderr
    # Stopped first: an agent starts a watchdog anew that was killed before it.
    pids = "$(pgrep -f '[p]yz watchdog ') $(pgrep -f '[p]yz agent ')"
    host.run(["sh", "-c", f'pids="{pids}"; kill -STOP $pids; kill -9 $pids'], check=True)
    until(lambda: not ours(host) & {"watchdog", "agent"}, "both are gone")
    host.run(["sh", "/run/gpuops/revive"], check=True)
    until(lambda: ours(host) >= {"watchdog", "agent"}, f"both are there again, but {ours(host)}")
    assert laptop.run("down", "next").returncode == 0


def test_a_lost_ledger_takes_a_rented_node_back(laptop: Laptop, houses: Any) -> None:
    """The key that the machine got here is in no provider's memory."""
    houses(1)
    up = laptop.run("up", "landlord", "--name", "lab", "--yes")
    assert up.returncode == 0, up.stderr
    (laptop.home / "ledger.db").write_bytes(b"no ledger at all")
    back = laptop.run("reap", "--adopt")
    assert "lab is back: 1 node on landlord" in back.stdout + back.stderr
    again = laptop.run("run", "--cluster", "lab", "--", "python3", "work.py")
    assert again.returncode == 0, again.stderr
    assert laptop.run("down", "lab").returncode == 0
