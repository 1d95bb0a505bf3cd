"""`--data` on hosts: it goes there once, whatever git ignores, and each node finds it where the script looks."""

from __future__ import annotations

import json
from pathlib import Path

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
