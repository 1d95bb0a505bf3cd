"""The injection table again, on a host, over both kinds of SSH."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from gpuops.ledger.store import Ledger
from tests.integration.cli.test_injection import CANARY, NASTY, SAY, VALUES, env_flags, said
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop


@pytest.mark.parametrize("system", [False, True], ids=["paramiko", "the system's ssh"])
def test_words_values_names_and_files(lab: Lab, laptop: Laptop, tmp_path: Path, system: bool) -> None:
    host = lab.host("a")
    laptop.folder = laptop.folder.parent / f'it\'s a "project"\n$(touch {CANARY}) {{run}} żółć'
    laptop.folder.mkdir()
    laptop.write("say.py", SAY)
    names = [value.replace("/", "") for value in NASTY if value.strip() not in ("", "-", "--")]
    for name in names:
        laptop.write(f"files/{name}", name)
    laptop.write("list.py", "import os, json\nprint(json.dumps(sorted(os.listdir('files'))))\n")
    laptop.up(host)
    if system:
        through_the_systems_ssh(laptop)
    done = laptop.run("run", *env_flags(), "--", "python3", "say.py", *NASTY)
    assert done.returncode == 0, done.stderr
    (one,) = said("0 " + done.stdout.partition(" ")[2]).values()
    assert one["argv"] == NASTY
    assert one["env"] == VALUES
    listed = laptop.run("run", "--", "python3", "list.py")
    assert json.loads(listed.stdout) == sorted(names)
    entered = laptop.run(
        "ssh", "lab", "--", "python3", "-c", "import sys; sys.stdout.write(repr(sys.argv[1:]))", *NASTY
    )
    assert entered.stdout == repr(NASTY), entered.stderr
    assert laptop.run("down").returncode == 0
    assert host.run(["find", "/root", "/srv", "/tmp", "-name", CANARY]).stdout == ""
    assert not list(tmp_path.rglob(CANARY))
    laptop.expect_hosts_clean(host)


def through_the_systems_ssh(laptop: Laptop) -> None:
    """As where the user's own configuration asks for what paramiko cannot do."""
    ledger = Ledger.open(laptop.home)
    (row,) = ledger.clusters()
    for machine in ledger.resources(row.id):
        target = {**machine.data["target"], "system": True}
        ledger.update_resource(row.id, dataclasses.replace(machine, data={**machine.data, "target": target}))
    ledger.close()
