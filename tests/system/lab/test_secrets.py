"""A whole run on a rented machine, and every byte of the machine while it goes on: keys are where they must be.

The account's keys stay on the laptop, and so does what else lies in `.env`. The host key that travelled through the
provider is of no use once somebody has logged in. What a provider's way of working puts on a machine besides:

AWS      a bucket is opened to a node by presigned URLs. They name the key that signed them and, where that is a
         temporary one, carry its session's token: neither is of use without the secret.
RunPod   puts a key of the pod's own into its environment, for whoever ends the pod.
Vast.ai  does the same, and starts its sshd with all of that environment.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.conftest import HANG_S, Shell, until
from tests.files import written_in
from tests.system.chaos.tenant import Tenant
from tests.system.lab.first_process import in_namespace
from tests.system.lab.hosts import Lab
from tests.system.lab.rented import RentedCloud, RentedMachine
from tests.system.lab.rented_aws import RentedAws
from tests.system.lab.rented_runpod import RentedRunPod, RunpodMachine
from tests.system.lab.rented_vast import RentedVast, VastMachine

LOOK = """
import json, os, pathlib, time
print("ENV " + json.dumps(dict(os.environ)), flush=True)
while not pathlib.Path("/srv/go-on").exists():
    time.sleep(0.1)
pathlib.Path("result").write_text("learnt")
"""
PROGRAM = ("--out", "result", "--", "python3", "look.py")
RUNPOD_KEY = "rpa_CANARYINTHEMINE0123456789ABCDEF"
VAST_KEY = "0123456789CANARYINTHEMINE0123456789abcdef"
OTHERS = {"WANDB_API_KEY": "canary-of-wandb-4711"}
SESSION = "canary+session+token/4711"
TRACES = ("CANARY", "canary")
"""One of these is in each key here, however it is written."""
MEMORY = ("dev/shm", "run", "tmp")
"""Folders of a machine that may be on no disk."""


@dataclass(frozen=True)
class Process:
    command_line: str
    environment: bytes

    @property
    def is_run(self) -> bool:
        """Whether it is the run's own program."""
        words = self.command_line.split()
        return words[-1:] == ["look.py"] and "python3" in words[0]


class Snapshot:
    """All that is on a machine at a moment."""

    def __init__(self, machine: RentedMachine) -> None:
        self.files = read_files(machine)
        self.processes = read_processes(machine)

    def files_with(self, text: str) -> list[str]:
        return [name for name, data in self.files.items() if text.encode() in data]

    def command_lines_with(self, text: str) -> list[str]:
        return [process.command_line for process in self.processes if text in process.command_line]

    def environments_with(self, text: str) -> list[str]:
        """The command lines of those that have it there."""
        return [process.command_line for process in self.processes if text.encode() in process.environment]


def read_files(machine: RentedMachine) -> dict[str, bytes]:
    """All that is on its disk beside what this computer brings to it, and what lies in memory."""
    tops = [(machine.disk, machine.disk), *((machine.root / folder, machine.root) for folder in MEMORY)]
    files = {str(path.relative_to(base)): data for top, base in tops for path, data in written_in(top).items()}
    return {name: data for name, data in files.items() if not f"/{name}".startswith((sys.prefix, sys.base_prefix))}


def read_processes(machine: RentedMachine) -> list[Process]:
    processes = []
    for pid in in_namespace("pid", machine.place.pid) if machine.place.pid else []:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            processes.append(Process(line, Path(f"/proc/{pid}/environ").read_bytes()))
        except OSError:
            continue  # it has ended meanwhile
    return processes


# ---- what is secret at each provider


class Keys(ABC):
    """The keys of an account, and where else than on the laptop parts of them may be."""

    flags: ClassVar[tuple[str, ...]]
    """What `run` takes."""
    variables: ClassVar[tuple[str, ...]]
    """The variables of a user's environment that hold them, or name files that do."""
    signing_headers: ClassVar[tuple[str, ...]]
    """The headers of a request in which a key may be told to the provider."""
    not_in_run: ClassVar[tuple[str, ...]]
    """How no variable of the run's environment begins."""

    @abstractmethod
    def dotenv(self) -> dict[str, str]:
        """What the user wrote into `.env`, to be made known to the service, too."""

    def secrets(self) -> list[str]:
        """What is in no file of the machine."""
        return [value for value in self.dotenv().values() if value not in self.names()]

    def names(self) -> list[str]:
        """What of `.env` a file of the machine may have: of use to nobody who has not the rest."""
        return []

    def of_machine(self) -> list[str]:
        """What the machine has of its provider, and this computer never gets."""
        return []

    @abstractmethod
    def requests(self) -> list[str]:
        """What was told to the provider but by signing."""

    def unsigned(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: text for name, text in headers.items() if name not in self.signing_headers}

    @abstractmethod
    def check_running(self, machine: RentedMachine, snapshot: Snapshot) -> None:
        """What is special at this provider while the run goes on."""

    @abstractmethod
    def kept_by_provider(self) -> dict[str, bytes]:
        """What lies in the account when the run has ended."""


class KeysOfAws(Keys):
    """Temporary ones, neither exported nor in files of AWS's own, which would go before `.env`."""

    flags = (*RentedAws.machine_flags, "--spot", "--sink", "s3://results/lab")
    variables = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")
    signing_headers = ("authorization", "x-amz-security-token")
    not_in_run = ("AWS_", "WANDB_", "RUNPOD_", "GPUOPS_HOST_KEY")

    def __init__(self, cloud: RentedAws) -> None:
        self._fake = cloud.fake
        self._fake.bucket("results")

    def dotenv(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": self._fake.key, "AWS_SECRET_ACCESS_KEY": self._fake.secret}
        return {**keys, "AWS_SESSION_TOKEN": SESSION, "RUNPOD_API_KEY": RUNPOD_KEY, **OTHERS}

    def names(self) -> list[str]:
        return [self._fake.key, SESSION]

    def requests(self) -> list[str]:
        """A path may be a presigned URL, which names the key."""
        requests = [(request, request.path.replace(self._fake.key, "")) for request in self._fake.requests]
        return [f"{path} {self.unsigned(it.headers)} {it.raw!r} {it.parameters}" for it, path in requests]

    def check_running(self, machine: RentedMachine, snapshot: Snapshot) -> None:
        """A presigned URL has the key's name and its session's token, in the one file that only its user reads."""
        (urls,) = [name for name in snapshot.files if name.endswith("/urls.json")]
        assert (machine.disk / urls).stat().st_mode & 0o777 == 0o600
        signed = snapshot.files[urls].decode()
        assert f"X-Amz-Credential={self._fake.key}" in signed
        assert "X-Amz-Security-Token=canary" in signed
        assert "4711" in signed
        for trace in (self._fake.key, SESSION, "session%2Btoken", "X-Amz-Signature"):
            assert set(snapshot.files_with(trace)) <= {urls}
        assert snapshot.files_with("canary") == [urls]

    def kept_by_provider(self) -> dict[str, bytes]:
        objects = self._fake.objects("results")
        assert set(objects) >= {"lab/python3-1/node0.tar", "lab/python3-1/node0.json"}
        return objects


class KeysOfRunPod(Keys):
    flags = ("--gpu-type", "4090")
    variables = ("RUNPOD_API_KEY",)
    signing_headers = ("authorization",)
    not_in_run = ("AWS_", "WANDB_", "RUNPOD_API_KEY", "GPUOPS_HOST_KEY", "GPUOPS_START", "GPUOPS_TOKEN")

    def __init__(self, cloud: RentedRunPod) -> None:
        self._fake = cloud.fake
        self._fake.service.own.key = RUNPOD_KEY

    def dotenv(self) -> dict[str, str]:
        return {"RUNPOD_API_KEY": RUNPOD_KEY, "AWS_SECRET_ACCESS_KEY": "canary-of-aws-4711", **OTHERS}

    def of_machine(self) -> list[str]:
        return [pod.key for pod in self._fake.pods.values()]

    def requests(self) -> list[str]:
        requests = self._fake.requests
        return [f"{it.path} {it.query} {self.unsigned(it.headers)} {it.raw!r}" for it in requests]

    def kept_by_provider(self) -> dict[str, bytes]:
        return {}

    def check_running(self, machine: RentedMachine, snapshot: Snapshot) -> None:
        assert isinstance(machine, RunpodMachine)
        pod = machine.record
        # The pod's own key: no argument, no file of ours; the first process has it, and the watchdog that came with it.
        assert not snapshot.command_lines_with(pod.key)
        assert snapshot.files_with(pod.key) == ["etc/rp_environment"]  # the image's
        until(
            lambda: programs_with(machine, pod.key) == {"sh", "sleep"},
            "only the two have it, but for a moment in which one of them starts a program",
        )
        assert pod.key not in machine.console
        (run,) = [process for process in snapshot.processes if process.is_run]
        assert pod.key.encode() not in run.environment
        # The throw-away host key: in no file, and in the first process alone.
        host_key = pod.env["GPUOPS_HOST_KEY"]
        secret_part = b"".join(base64.b64decode(host_key).splitlines()[1:-1])[80:]  # behind what each such key has
        assert not [name for name, data in snapshot.files.items() if secret_part in data.replace(b"\n", b"")]
        assert not snapshot.files_with(host_key)
        assert not snapshot.command_lines_with(host_key)
        until(
            lambda: programs_with(machine, host_key) == {"sh"},
            "only the first process has it, but for a program that it just starts",
        )


class KeysOfVast(Keys):
    flags = ("--gpu-type", "a4000")
    variables = ("VAST_API_KEY",)
    signing_headers = ("authorization",)
    not_in_run = ("AWS_", "WANDB_", "VAST_", "CONTAINER_", "GPUOPS_HOST_KEY", "GPUOPS_LOGIN", "GPUOPS_TOKEN")

    def __init__(self, cloud: RentedVast) -> None:
        self._fake = cloud.fake
        self._fake.service.key = VAST_KEY

    def dotenv(self) -> dict[str, str]:
        return {"VAST_API_KEY": VAST_KEY, "AWS_SECRET_ACCESS_KEY": "canary-of-aws-4711", **OTHERS}

    def of_machine(self) -> list[str]:
        return [one.key for one in self._fake.pods.values()]

    def requests(self) -> list[str]:
        requests = self._fake.requests
        return [f"{it.path} {it.query} {self.unsigned(it.headers)} {it.raw!r}" for it in requests]

    def kept_by_provider(self) -> dict[str, bytes]:
        return {}

    def check_running(self, machine: RentedMachine, snapshot: Snapshot) -> None:
        """The machine's own key and its first host key: in no file, no command line, and not in the run."""
        assert isinstance(machine, VastMachine)
        host_key = machine.record.env["GPUOPS_HOST_KEY"]
        secret_part = b"".join(base64.b64decode(host_key).splitlines()[1:-1])[80:]
        assert not [name for name, data in snapshot.files.items() if secret_part in data.replace(b"\n", b"")]
        (run,) = [process for process in snapshot.processes if process.is_run]
        for secret in (machine.record.key, host_key):
            assert not snapshot.files_with(secret)
            assert not snapshot.command_lines_with(secret)
            assert secret not in machine.console
            assert secret.encode() not in run.environment


def programs_with(machine: RentedMachine, secret: str) -> set[str]:
    """The programs in whose environment this is."""
    named = [process for process in read_processes(machine) if process.command_line]
    return {process.command_line.split()[0] for process in named if secret.encode() in process.environment}


# ---- the run


@pytest.fixture(params=[RentedAws, RentedRunPod, RentedVast], ids=lambda cloud: cloud.name)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RentedCloud]:
    kind: type[RentedCloud] = request.param
    if reason := kind.why_not():
        pytest.skip(reason)
    lab: Lab = request.getfixturevalue("lab")
    with kind(tmp_path / "cloud", lab) as cloud:
        cloud.lift_limits()
        yield cloud


@pytest.fixture
def keys(cloud: RentedCloud) -> Keys:
    kinds: dict[str, Any] = {"aws": KeysOfAws, "runpod": KeysOfRunPod, "vast": KeysOfVast}
    chosen: Keys = kinds[cloud.name](cloud)
    return chosen


@pytest.fixture
def tenant(cloud: RentedCloud, keys: Keys) -> Iterator[Tenant]:
    """Somebody in whose project the keys lie, in `.env` and nowhere else."""
    with cloud.tenant() as tenant:
        for variable in keys.variables:
            del tenant.shell.env[variable]
        tenant.shell.write(".env", "".join(f"{name}={value}\n" for name, value in keys.dotenv().items()))
        tenant.shell.write("look.py", LOOK)
        yield tenant


def test_keys_are_where_they_must_be(cloud: RentedCloud, keys: Keys, tenant: Tenant) -> None:
    run = tenant.shell.start("run", "--on", cloud.name, "--yes", *keys.flags, *PROGRAM)
    machine = wait_for_run(cloud, tenant, run)
    snapshot = Snapshot(machine)
    check_account_keys(keys, machine, snapshot)
    check_first_host_key(machine, snapshot)
    keys.check_running(machine, snapshot)

    assert machine.run(["touch", "/srv/go-on"]).returncode == 0
    out, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 0, err
    (line,) = [line for line in out.splitlines() if "ENV {" in line]
    environment = json.loads(line[line.index("{") :])
    assert not [name for name in environment if name.startswith(keys.not_in_run)]
    assert [path.read_text() for path in tenant.shell.folder.glob("runs/*/out/result")] == ["learnt"]
    assert cloud.what_bills() == []
    check_what_is_kept(keys, tenant.shell, out + err)


def wait_for_run(cloud: RentedCloud, tenant: Tenant, run: subprocess.Popen[str]) -> RentedMachine:
    """The machine on which the run goes on."""

    def with_run() -> list[RentedMachine]:
        machines = cloud.machines(tenant)
        return [machine for machine in machines if any(process.is_run for process in read_processes(machine))]

    running: list[RentedMachine] = until(lambda: with_run() or run.poll() is not None, "the run goes on")
    assert run.poll() is None, run.communicate()
    (machine,) = running
    return machine


def check_account_keys(keys: Keys, machine: RentedMachine, snapshot: Snapshot) -> None:
    """What lies in `.env` is nowhere on the machine, nor in what it can ask its provider for, nor what it printed."""
    assert any(name.endswith("look.py") for name in snapshot.files)
    assert machine.console
    for trace in (*TRACES, *keys.dotenv().values()):
        assert trace not in machine.known_to_provider
        assert trace not in machine.console
    for canary in keys.secrets():
        assert snapshot.files_with(canary) == []
    for canary in keys.dotenv().values():
        assert snapshot.environments_with(canary) == []
        assert snapshot.command_lines_with(canary) == []
    (run,) = [process for process in snapshot.processes if process.is_run]
    names = [entry.partition(b"=")[0].decode() for entry in run.environment.split(b"\0") if entry]
    assert not [name for name in names if name.startswith(keys.not_in_run)]


def check_first_host_key(machine: RentedMachine, snapshot: Snapshot) -> None:
    """It is replaced."""
    shown = snapshot.files["etc/ssh/ssh_host_ed25519_key.pub"].decode().split()[:2]
    assert shown != machine.first_host_key.split()[:2]


def check_what_is_kept(keys: Keys, shell: Shell, printed: str) -> None:
    """Keys do not come home or into the account, are not printed, and are told to the provider by signing alone."""
    files = {str(path): data for path, data in written_in(shell.home, shell.folder).items() if path.name != ".env"}
    kept = {**files, **keys.kept_by_provider()}
    requests = keys.requests()
    for canary in (*keys.dotenv().values(), *keys.of_machine()):
        assert not [name for name, data in kept.items() if canary.encode() in data]
        assert canary not in printed
        assert not [request for request in requests if canary in request]
