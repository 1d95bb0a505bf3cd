"""SIGKILL the command line at steps of a run on hosts: the guard undoes or finishes, and nothing of ours lives on."""

from __future__ import annotations

import pytest

from tests.conftest import HANG_S, until
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop, root

WORK = ["--", "sh", "-c", "echo working; sleep 0.3; echo made > made.pt"]


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            "commit:2", marks=pytest.mark.proof
        ),  # every commit: tests/system/chaos, on nodes of this computer
        "signal:KILL:gpuops.nodes.bootstrap:start_node",
        "signal:KILL:gpuops.clusters.readiness:contact_cluster",
        pytest.param("commit:7", marks=pytest.mark.proof),
        "call:start:1:KILL",
        "signal:KILL:gpuops.commands.run_attempt:finish",
        "signal:KILL:gpuops.commands.end_after_run:tear_down",
    ],
)
def test_killed_on_the_way(lab: Lab, laptop: Laptop, point: str) -> None:
    hosts = lab.host("a"), lab.host("b")
    died = laptop.run("run", "--on", "ssh", *laptop.naming(*hosts), *WORK, driver=point)
    assert died.returncode == -9, died.stderr
    laptop.run("runs")  # the next command: starts a guard where none is left
    until(lambda: not laptop.cluster_states(), f"an end to what died at {point}")
    until(lambda: not any(host.processes() for host in hosts), f"no process: {[h.processes() for h in hosts]}")
    for host in hosts:
        assert not list(root(host).glob("root/.gpuops-*/*/n*")), "no node is left"
    rows = laptop.json("runs")["runs"]
    if rows and rows[0]["outcome"] == "done":
        assert (laptop.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"
        assert (laptop.folder / "runs/sh-1/logs/node0/launcher.out").read_text() == "working\n"


def test_a_port_of_a_node_on_this_computer(lab: Lab, laptop: Laptop) -> None:
    """`gpuops forward`, and the sentence where the port is taken here."""
    host = lab.host("a")
    laptop.up(host)
    serving = laptop.start("run", "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "16006")
    until(lambda: "http.server" in " ".join(host.processes()), "the server on the host")
    held = laptop.start("forward", "lab", "16006", "--local", "16007")
    fetch = ["python3", "-c", "import urllib.request as u; print(u.urlopen('http://127.0.0.1:16007').status)"]

    def fetched() -> str:
        import subprocess

        return subprocess.run([*lab.enter, *fetch], capture_output=True, text=True, timeout=HANG_S).stdout

    until(lambda: fetched() == "200\n", "the page through the tunnel")
    taken = laptop.run("forward", "lab", "16006", "--local", "16007")
    assert taken.returncode == 2
    assert taken.stderr.startswith("error: port 16007 of this computer cannot be had")
    held.terminate()
    held.communicate(timeout=HANG_S)
    assert laptop.run("stop").returncode == 0
    serving.communicate(timeout=HANG_S)
    assert laptop.run("down").returncode == 0
    laptop.expect_hosts_clean(host)
