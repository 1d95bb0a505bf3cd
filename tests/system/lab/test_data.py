"""`--data` on hosts: it goes there once, whatever git ignores, and each node finds it where the script looks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.conftest import until
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Laptop, root

EACH = ("run", "--all-nodes")


def inodes(host: Host, name: str) -> set[int]:
    """Of every file of that name below a host's cluster that is no link: one that is sent anew has another."""
    (cluster,) = root(host).glob("root/.gpuops-*/lab")
    return {path.stat().st_ino for path in cluster.rglob(name) if not path.is_symlink()}


def shown(laptop: Laptop, data: Path | str, show: str) -> list[str]:
    done = laptop.run(*EACH, "--data", str(data), "--", "sh", "-c", show)
    assert done.returncode == 0, done.stderr
    return sorted(line.partition("] ")[2] for line in done.stdout.splitlines())


def test_data_go_to_each_machine_once(lab: Lab, laptop: Laptop) -> None:
    a, b = lab.host("a"), lab.host("b")
    laptop.up(a, b, more=("--nodes", "4"))
    far = laptop.folder.parent / "far"
    (far / "deep").mkdir(parents=True)
    (far / "deep" / "x.bin").write_text("outside")
    (far / "linked.bin").symlink_to(far / "deep" / "x.bin")
    (far / ".env").write_text("KEY=hush\n")
    laptop.write(".gitignore", "data/\n")
    laptop.write("data/y.bin", "inside")

    planned = laptop.run(*EACH, "--dry-run", "--json", "--data", str(far), "--", "true")
    assert json.loads(planned.stdout)["data"] == {"path": str(far), "files": 2, "bytes": 14}
    show = 'cat "$GPUOPS_DATA/deep/x.bin"; echo; cat "$GPUOPS_DATA/linked.bin"; echo; ls -A "$GPUOPS_DATA"'
    assert shown(laptop, far, show) == sorted([*["outside"] * 8, *["deep"] * 4, *["linked.bin"] * 4])
    sent = [inodes(host, "x.bin") for host in (a, b)]
    assert [len(one) for one in sent] == [1, 1], "nodes of one machine share them"
    assert shown(laptop, "data", 'cat data/y.bin; echo; cat "$GPUOPS_DATA/y.bin"; echo') == ["inside"] * 8
    assert shown(laptop, far / "deep" / "x.bin", 'cat "$GPUOPS_DATA"; echo') == ["outside"] * 4
    shown(laptop, far, "true")
    assert all(before < inodes(host, "x.bin") for host, before in zip((a, b), sent, strict=True)), "not sent again"
    assert [path.name for path in (laptop.folder / "runs").glob("*/out/*")] == [], "data are no results"

    assert laptop.run("down", "lab").returncode == 0
    assert not (laptop.folder / "runs" / "lab-left").exists()
    laptop.expect_hosts_clean(a, b)


def test_data_at_an_address_come_into_the_cluster_once(lab: Lab, laptop: Laptop) -> None:
    """Host a alone reaches the server, which is on its loopback: what b has, it has from a."""
    a, b = lab.host("a"), lab.host("b")
    laptop.up(a, b)
    a.run(["sh", "-c", "mkdir /data && head -c 10000000 /dev/urandom > /data/big.bin"], check=True)
    sum_there = a.run(["sh", "-c", "sha256sum < /data/big.bin"]).stdout.strip()
    served = "echo $$ > /data/pid; exec python3 -m http.server --bind 127.0.0.1 --directory /data 8000 2>/data/log"
    connects = ["python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 8000))"]
    with subprocess.Popen([*a.enter, "sh", "-c", served], stdout=subprocess.DEVNULL):
        until(lambda: a.run(connects).returncode == 0, "the server listens")
        for _ in range(2):
            data = shown(laptop, "http://127.0.0.1:8000/big.bin", 'sha256sum < "$GPUOPS_DATA"')
            assert data == [sum_there] * 2
        log = a.run(["cat", "/data/log"]).stdout
        assert [line.rpartition('"')[2].split()[0] for line in log.splitlines() if "GET" in line] == ["200", "304"]
        a.run(["sh", "-c", "kill $(cat /data/pid)"])
    assert laptop.run("down", "lab").returncode == 0
    laptop.expect_hosts_clean(a, b)
