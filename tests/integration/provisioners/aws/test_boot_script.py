"""What a machine is told with its birth: cloud-init and systemd take it, and its dead-man keeps the time."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from gpuops.core.errors import Rejected
from provisioners.aws import boot_script
from provisioners.kit import keys

HOST = keys.generate_key_pair()
LOGIN = keys.generate_key_pair().public
END = 1_900_000_000.7
KEYS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["bootcmd", "ssh_keys", "ssh_authorized_keys"],
    "properties": {
        "bootcmd": {"type": "array", "minItems": 1, "items": {"type": ["string", "array"]}},
        "ssh_deletekeys": {"type": "boolean"},
        "ssh_keys": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"ed25519_private": {"type": "string"}, "ed25519_public": {"type": "string"}},
        },
        "ssh_authorized_keys": {"type": "array", "minItems": 1, "items": {"type": "string"}},
        "disable_root": {"type": "boolean"},
        "ssh_pwauth": {"type": "boolean"},
    },
}
"""The part of cloud-init's schema that is used."""
SCHEMA = "usr/lib/python3/dist-packages/cloudinit/config/schemas/schema-cloud-config-v1.json"
SCHEMAS = (Path("/", SCHEMA), Path(__file__).parents[4] / ".venv/.made/cloud-init" / SCHEMA)
"""Of a machine that has it, else as `make test` has unpacked it."""


def document() -> dict[str, Any]:
    text = boot_script.document(host=HOST, login=LOGIN, user="ubuntu", end=END)
    first, _, rest = text.partition("\n")
    assert first == "#cloud-config"
    found = yaml.safe_load(rest)
    assert isinstance(found, dict)
    return found


def test_cloud_init_takes_it() -> None:
    jsonschema.validate(document(), KEYS)


@pytest.mark.skipif(not any(path.exists() for path in SCHEMAS), reason="cloud-init's own schema is not here")
def test_it_is_valid_by_cloud_inits_own_schema() -> None:
    path = next(path for path in SCHEMAS if path.exists())
    jsonschema.validate(document(), json.loads(path.read_text()))


def test_it_holds_the_keys_and_no_more_than_aws_takes() -> None:
    found = document()
    assert found["ssh_authorized_keys"] == [LOGIN]
    assert (found["disable_root"], found["ssh_pwauth"], found["ssh_deletekeys"]) == (True, False, True)
    keys = found["ssh_keys"]
    public = load_ssh_private_key(keys["ed25519_private"].encode(), None).public_key()
    assert public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() == keys["ed25519_public"] == HOST.public
    assert (
        len(boot_script.document(host=HOST, login=LOGIN, user="ubuntu", end=END).encode()) < boot_script.MAX_BYTES / 2
    )


def test_root_may_log_in_where_root_is_who_logs_in() -> None:
    told = boot_script.document(host=HOST, login=LOGIN, user="root", end=END)
    assert json.loads(told.removeprefix("#cloud-config"))["disable_root"] is False


def test_what_aws_would_not_take_is_never_sent() -> None:
    with pytest.raises(Rejected, match="AWS takes 16384"):
        boot_script.document(host=HOST, login="x" * 17000, user="ubuntu", end=END)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_takes_its_units(tmp_path: Path) -> None:
    program = tmp_path / "end"
    program.write_text("exit 0\n")
    for name, text in boot_script.units().items():
        (tmp_path / name).write_text(text.replace(boot_script.PROGRAM, str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in boot_script.units())],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpuops-end" not in done.stderr, done.stderr


def test_nothing_of_the_dead_man_waits_for_the_rest_of_the_start() -> None:
    units = boot_script.units()
    assert all("DefaultDependencies=no" in text for text in units.values())
    assert not any(word in text for text in units.values() for word in ("After=", "Requires=", "Wants=", "Conflicts="))
    assert "--no-block start" in boot_script.arm("ubuntu", END)


class Machine:
    """A folder for a machine's `/`, where the dead-man's programs run, with tools that note what they are asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tools, self.said = folder / "tools", folder / "said"
        self.watch, self.program = folder / "var/lib/gpuops", folder / "usr/local/lib/gpuops/end"
        for path in (self.tools, folder / "etc/systemd/system", folder / "run", folder / "proc"):
            path.mkdir(parents=True)
        self.set_uptime(60.0)
        self.user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        for name, text in (
            ("systemctl", f'echo "systemctl $*" >>{self.said}'),
            ("sleep", ":"),
            ("flock", 'shift 3; exec "$@"'),
            ("setpriv", 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"'),
        ):
            self._tool(name, text)

    def _tool(self, name: str, text: str) -> None:
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def set_uptime(self, seconds: float) -> None:
        (self.folder / "proc/uptime").write_text(f"{seconds:.2f} 7.00\n")

    def set_date(self, utc: float) -> None:
        self._tool("date", f"echo {int(utc)}")

    def arm(self, end: float, user: str = "") -> None:
        self._run(boot_script.arm(user or self.user, end))

    def look(self) -> None:
        self._run(self.program.read_text())

    def _run(self, text: str) -> None:
        for path in ("/var/lib/gpuops", "/usr/local/lib/gpuops", "/etc/systemd/system", "/run/gpuops-revive",
                     "/run/gpuops-due", "/proc/uptime"):  # fmt: skip
            text = text.replace(path, f"{self.folder}{path}") if f"{self.folder}{path}" not in text else text
        text = text.replace("export PATH=", f"export PATH={self.tools}:")
        env = {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-c", text], env=env, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr

    @property
    def asked(self) -> list[str]:
        return self.said.read_text().splitlines() if self.said.exists() else []

    @property
    def is_off(self) -> bool:
        return "systemctl poweroff" in self.asked


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_boot_arms_the_timer(machine: Machine) -> None:
    machine.arm(END)
    assert (machine.watch / "end").read_text() == "1900000000\n"
    assert {path.name for path in (machine.folder / "etc/systemd/system").iterdir()} == set(boot_script.units())
    assert machine.asked == [
        "systemctl daemon-reload",
        "systemctl enable gpuops-end.timer",
        "systemctl --no-block start gpuops-end.timer gpuops-end.service",
    ]


def test_a_reboot_keeps_the_end_that_stands(machine: Machine) -> None:
    machine.arm(END)
    (machine.watch / "end").write_text("1950000000\n")
    machine.arm(END)
    assert (machine.watch / "end").read_text() == "1950000000\n"


def test_the_time_that_has_come_switches_the_machine_off_and_insists(machine: Machine) -> None:
    machine.arm(time.time() - 5)
    machine.look()
    assert machine.asked[-3:] == [
        "systemctl poweroff",
        "systemctl --force poweroff",
        "systemctl --force --force poweroff",
    ]


def test_a_clock_that_is_set_back_lets_no_machine_live_longer(machine: Machine) -> None:
    machine.set_date(END - 600)
    machine.arm(END)
    machine.look()
    assert not machine.is_off
    machine.set_date(END - 4200)  # an hour back
    machine.set_uptime(60 + 599)
    machine.look()
    assert not machine.is_off
    machine.set_uptime(60 + 600)
    machine.look()
    assert machine.is_off


def test_an_end_that_moves_is_counted_anew_by_uptime(machine: Machine) -> None:
    machine.set_date(END - 600)
    machine.arm(END)
    machine.look()
    (machine.watch / "end").write_text(f"{END + 3600:.0f}\n")
    machine.set_date(END)
    machine.set_uptime(660)
    machine.look()
    machine.set_uptime(660 + 3599)
    machine.look()
    assert not machine.is_off
    (machine.folder / "run/gpuops-due").write_text("rubbish\n")
    machine.look()
    assert not machine.is_off, "what cannot be read is counted from the clock"


@pytest.mark.parametrize("end", ["none\n", "2100000000\n", "2100000000.75"])
def test_an_end_that_was_moved_is_kept(machine: Machine, end: str) -> None:
    machine.arm(time.time() - 5)
    (machine.watch / "end").write_text(end)
    machine.look()
    assert not machine.is_off
    assert (machine.watch / "beat").exists()


@pytest.mark.parametrize("damage", ["", "rubbish\n", "-5\n", "01\n", None])
def test_while_the_end_cannot_be_read_the_last_one_counts(machine: Machine, damage: str | None) -> None:
    machine.arm(time.time() - 5)
    path = machine.watch / "end"
    path.write_text("2100000000\n")
    machine.look()
    path.unlink() if damage is None else path.write_text(damage)
    machine.look()
    assert not machine.is_off


def test_without_any_end_the_one_of_its_birth_counts(machine: Machine) -> None:
    machine.arm(time.time() - 5)
    (machine.watch / "end").write_text("rubbish")
    machine.look()
    assert machine.is_off


def test_the_folder_is_the_logins_once_that_is_there(machine: Machine) -> None:
    machine.arm(END, "nobody-yet")
    assert stat.S_IMODE(machine.watch.stat().st_mode) == 0o777
    machine.arm(END)
    machine.look()
    assert stat.S_IMODE(machine.watch.stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform != "linux", reason="GNU date")
def test_the_node_is_started_again_once_in_half_a_minute(machine: Machine) -> None:
    machine.arm(END)
    (machine.watch / "revive").write_text(f"echo revived >>{machine.folder}/revived\n")
    for second in range(1_800_000_000, 1_800_000_060, 10):
        machine._tool("date", f"echo {second}")
        machine.look()
    until = time.monotonic() + 600
    revived = machine.folder / "revived"
    while time.monotonic() < until and (not revived.exists() or revived.read_text().count("revived") < 2):
        time.sleep(0.05)
    assert revived.read_text().count("revived") == 2


def test_it_goes_through_the_request_as_it_is() -> None:
    text = boot_script.document(host=HOST, login=LOGIN, user="ubuntu", end=END)
    assert base64.b64decode(base64.b64encode(text.encode())).decode() == text
    assert text.isascii()
