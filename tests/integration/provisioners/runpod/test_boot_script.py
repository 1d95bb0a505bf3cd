"""What a pod runs first, run here: every path under a folder, and a server in RunPod's place."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from provisioners.runpod import boot_script
from tests.conftest import HANG_S, until
from tests.integration.provisioners.runpod.canned import CUT, Canned, Says, problem

ENDS = ("POST /v2/pods/pod1/action", "DELETE /v2/pods/pod1", "POST /graphql")
KEY = "rpa_THISISTHEPODSOWNKEY"
SHELLS = [
    pytest.param(shell, marks=pytest.mark.skipif(not shutil.which(shell), reason=f"there is no {shell} here"))
    for shell in ("dash", "bash")
]
TOOLS = (
    "cat",
    "chmod",
    "date",
    "env",
    "grep",
    "mkdir",
    "mv",
    "rm",
    "sed",
    "sh",
    "sleep",
    "base64",
    "tail",
    "touch",
    "tr",
)
PRIVATE, PUBLIC = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n",
    "ssh-ed25519 AAAAhost",
)
IMAGES_OWN = '#!/bin/sh\n# starts sshd\nenv >"{root}/start.env"\nexec sleep 600\n'


@dataclass
class Pod:
    """A folder in the place of a machine's /."""

    root: Path
    shell: str
    api: Canned
    path: str = os.environ["PATH"]
    running: subprocess.Popen[bytes] | None = None

    @property
    def watch(self) -> Path:
        return self.root / "run/gpuops"

    @property
    def key(self) -> Path:
        return self.root / "etc/ssh/ssh_host_ed25519_key"

    def begin(self, end: str, **more: str) -> None:
        """As a container begins: `args` as words, the environment as it was given."""
        env = {
            "PATH": self.path, "RUNPOD_API_KEY": KEY, "RUNPOD_POD_ID": "pod1", "PUBLIC_KEY": "ssh-ed25519 AAAAours",
            "GPUOPS_LOGIN": "ssh-ed25519 AAAAours",
            "GPUOPS_END": end, "GPUOPS_HOST_KEY": base64.b64encode(PRIVATE.encode()).decode(),
            "GPUOPS_HOST_PUBLIC": PUBLIC, "GPUOPS_TOKEN": "token-0",
            boot_script.VARIABLE: boot_script.BOOT.script(
                self.api.url, root=str(self.root), look_s=0.1, again_s=0.1),
            **more,
        }  # fmt: skip
        words = [*boot_script.ENTRYPOINT, *boot_script.COMMAND]
        assert words[0] == "sh"
        with (self.root / "log").open("ab") as log:
            self.running = subprocess.Popen(
                [str(shutil.which(self.shell)), *words[1:]], env=env, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        """As a container ends: all of it at once."""
        if self.running is not None:
            os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()
            self.running = None

    def image(self, text: str = IMAGES_OWN) -> None:
        path = self.root / "start.sh"
        path.write_text(text.format(root=self.root))
        path.chmod(0o755)

    def only(self, *programs: str) -> Path:
        """A PATH with nothing but these and the tools that every image has."""
        folder = self.root / "bin"
        folder.mkdir()
        for name in (*TOOLS, *programs):
            found = sys.executable if name == "python3" else shutil.which(name)
            (folder / name).symlink_to(os.path.realpath(str(found)))
        self.path = str(folder)
        return folder


@pytest.fixture
def api() -> Iterator[Canned]:
    with Canned() as server:
        yield server


@pytest.fixture(params=SHELLS)
def pod(request: pytest.FixtureRequest, tmp_path: Path, api: Canned) -> Iterator[Pod]:
    one = Pod(tmp_path, request.param, api)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    yield one
    one.stop()


def later() -> str:
    return str(int(time.time()) + 3600)


def past() -> str:
    return str(int(time.time()) - 5)


def words_of(pid: int) -> str:
    """The arguments of a process and all that it has started, one after another."""
    found = []
    try:
        for one in (process := psutil.Process(pid), *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                found.append(" ".join(one.cmdline()))
    except psutil.NoSuchProcess:
        pass
    return "\n".join(found)


def test_the_images_own_start_gets_the_key_and_none_of_our_secrets(pod: Pod) -> None:
    pod.image()
    pod.begin(later())
    env = until(lambda: (pod.root / "start.env").exists() and (pod.root / "start.env").read_text(), "the image starts")
    assert pod.key.read_text() == PRIVATE
    assert stat.S_IMODE(pod.key.stat().st_mode) == 0o600
    assert pod.key.with_suffix(".pub").read_text() == f"{PUBLIC}\n"
    assert f"RUNPOD_API_KEY={KEY}" in env, "by which it ends itself"
    assert "PUBLIC_KEY=ssh-ed25519 AAAAours" in env
    assert "GPUOPS_" not in env
    assert stat.S_IMODE((pod.root / "start.env").stat().st_mode) == 0o644, "the image's own umask"
    assert stat.S_IMODE(pod.watch.stat().st_mode) == 0o700
    assert not pod.api.asked


def test_a_key_that_was_replaced_is_not_put_back(pod: Pod) -> None:
    pod.image()
    pod.key.parent.mkdir(parents=True)
    pod.key.write_text("its own")
    (pod.key.parent / ".gpuops-replaced").touch()
    pod.begin(later())
    until((pod.root / "start.env").exists, "the image starts")
    assert pod.key.read_text() == "its own"


def test_at_the_end_all_ways_are_tried_again_and_again_and_its_key_is_nobodys_argument(pod: Pod) -> None:
    """Whatever is answered: the one whom it should have ended still asks."""
    pod.image()
    seen: list[str] = []

    def tell(asked: Any) -> Says:
        if pod.running:
            seen.append(words_of(pod.running.pid))
        return problem(404, "pod not found") if asked.method == "DELETE" else Says(302, None, {"Location": "/v2/x"})

    pod.api.tell = tell
    pod.begin(past())
    until(lambda: pod.api.said.count("DELETE /v2/pods/pod1") > 3, "asked again, though it is said to be gone")
    assert pod.api.asked[0].body == {"action": "terminate"}
    assert set(pod.api.said) == {*ENDS, "GET /v2/pods/pod1"}
    assert all(asked.headers["Authorization"] == f"Bearer {KEY}" for asked in pod.api.asked)
    assert all("gpuops" in asked.headers["User-Agent"] for asked in pod.api.asked)
    assert any("curl" in words for words in seen)
    assert not [words for words in seen if KEY in words]


@pytest.mark.parametrize("curl", ["", "exit 60", "sleep 1; exit 28"])
def test_with_no_curl_or_with_one_that_does_nothing_it_is_done_by_python(pod: Pod, curl: str) -> None:
    pod.image()
    folder = pod.only("python3", "bash")
    if curl:
        program(folder / "curl", f"#!/bin/sh\n{curl}\n")
    seen: list[str] = []

    def tell(_: Any) -> Says:
        seen.append(words_of(pod.running.pid) if pod.running else "")
        return Says(500)

    pod.api.tell = tell
    pod.begin(past())
    until(lambda: len(seen) > 9, "it is done by Python, again and again")
    assert [(asked.method, asked.path, asked.body) for asked in pod.api.asked[:5]] == [
        ("POST", "/v2/pods/pod1/action", {"action": "terminate"}),
        ("DELETE", "/v2/pods/pod1", None),
        ("POST", "/graphql", {"query": 'mutation { podTerminate(input: {podId: "pod1"}) }'}),
        ("GET", "/v2/pods/pod1", None),
        ("POST", "/v2/pods/pod1/action", {"action": "stop"}),
    ]
    assert {asked.headers["Authorization"] for asked in pod.api.asked} == {f"Bearer {KEY}"}
    assert any("python3" in words for words in seen)
    assert not [words for words in seen if KEY in words]


def test_where_nothing_else_is_what_runpod_puts_into_its_pods_does_it(pod: Pod) -> None:
    pod.image()
    program(pod.only() / "runpodctl", f'#!/bin/sh\necho "$@" >>"{pod.root}/ctl"\n')
    pod.begin(past())
    until(lambda: (pod.root / "ctl").exists() and (pod.root / "ctl").read_text().count("remove") > 1, "and again")
    assert set((pod.root / "ctl").read_text().splitlines()) == {"remove pod pod1", "pod delete pod1"}


SAMPLE = [
    ("terminate", 404), ("DELETE /v2/pods/pod1", 403), ("DELETE /v2/pods/pod1", CUT), ("POST /graphql", 404),
    ("POST /graphql", 500), ("stop", 204), ("stop", 401), ("", 404), ("", 429), ("", CUT),
]  # fmt: skip
"""The way that works, and what all others answer: more stand in test_self_destruct.py."""


@pytest.mark.parametrize(("works", "other"), SAMPLE)
@pytest.mark.parametrize("python", ["python3", "curl"])
def test_one_way_that_works_is_enough(pod: Pod, works: str, other: int, python: str) -> None:
    """As a container ends, so ends everything in it; and where none works, there is another round."""
    if not shutil.which(python):
        pytest.skip(f"there is no {python} here")
    pod.image()
    pod.only(python, "bash")

    def tell(asked: Any) -> Says:
        way = (asked.body or {}).get("action") or f"{asked.method} {asked.path}"
        if way == works and pod.running:
            os.killpg(pod.running.pid, signal.SIGKILL)
        return Says(other)

    pod.api.tell = tell
    pod.begin(past())
    assert pod.running
    if works:
        pod.running.wait(HANG_S)
        assert pod.api.said.count("DELETE /v2/pods/pod1") <= 1, "in the first round"
    else:
        until(lambda: pod.api.said.count("DELETE /v2/pods/pod1") > 1, "another round")


def test_a_container_that_starts_again_keeps_the_end_it_had(pod: Pod) -> None:
    pod.image()
    pod.begin(later())
    until((pod.watch / "pid").exists, "the watchdog is there")
    first = (pod.watch / "end").read_text()
    pod.stop()
    (pod.watch / "pid").unlink()
    pod.begin(past())  # which would be the end
    until((pod.watch / "pid").exists, "the watchdog is there again")
    time.sleep(0.5)
    assert (pod.watch / "end").read_text() == first
    assert not pod.api.asked


def test_the_end_moves_with_the_file_and_half_written_ones_do_not_count(pod: Pod) -> None:
    pod.image()
    pod.begin(later())
    until((pod.watch / "pid").exists, "the watchdog is there")
    for text in ("", "soon", "-", "none"):
        (pod.watch / "end").write_text(text)
        time.sleep(0.25)
        assert not pod.api.asked, text
    (pod.watch / "end").write_text(f"{past()}.5\n")
    until(lambda: pod.api.asked, "the pod is ended")


def test_a_clock_that_is_set_back_gives_no_more_time(pod: Pod) -> None:
    """`date` says an hour less from the second look on."""
    pod.image()
    true = shutil.which("date")
    back = f'if [ -e "{pod.root}/back" ]; then echo $(($({true} +%s) - 3600)); else {true} +%s; fi'
    program(pod.root / "bin/date", f"#!/bin/sh\n{back}\necho x >>'{pod.root}/looks'\n")
    pod.path = f"{pod.root / 'bin'}:{pod.path}"
    pod.begin(str(int(time.time()) + 4))
    until((pod.root / "looks").exists, "the clock is read")
    (pod.root / "back").touch()
    until(lambda: pod.api.asked, "the pod is ended")


def test_the_pid_is_that_of_the_watchdog(pod: Pod) -> None:
    pod.image()
    pod.begin(later())
    pid = int(until(lambda: (pod.watch / "pid").exists() and (pod.watch / "pid").read_text(), "the watchdog is there"))
    os.kill(pid, signal.SIGKILL)
    (pod.watch / "end").write_text(past())
    time.sleep(0.5)
    assert not pod.api.asked, "nobody else does it"


def test_the_node_is_started_anew(pod: Pod) -> None:
    pod.image()
    pod.begin(later())
    until((pod.watch / "pid").exists, "the watchdog is there")
    (pod.watch / "revive").write_text(f'#!/bin/sh\necho x >>"{pod.root}/revived"\n')
    until(lambda: (pod.root / "revived").exists() and (pod.root / "revived").read_text().count("x") > 1, "and again")


SSHD = '#!/bin/sh\nprintf "%s\\n" "$*" >"{root}/sshd.words"\nexec sleep 600\n'


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_an_image_that_knows_nothing_of_runpod_gets_our_sshd(pod: Pod) -> None:
    pod.image("#!/bin/sh\necho a program of its own\n")
    program(pod.only("python3") / "sshd", SSHD.format(root=pod.root))
    (pod.root / "etc/shadow").write_text("root:!:1:0:99999:7:::\n")
    for _ in range(2):
        (pod.root / "sshd.words").unlink(missing_ok=True)  # of the first time
        pod.begin(later())
        words = until(lambda: (pod.root / "sshd.words").exists() and (pod.root / "sshd.words").read_text(), "sshd runs")
        pod.stop()
    assert words.startswith("-D -e")
    assert (pod.root / "root/.ssh/authorized_keys").read_text() == "ssh-ed25519 AAAAours\n", "once"
    assert stat.S_IMODE((pod.root / "root/.ssh").stat().st_mode) == 0o700
    assert (pod.root / "etc/shadow").read_text().startswith("root:*:")
    assert pod.key.read_text() == PRIVATE


@pytest.mark.parametrize("manager", ["apt-get", "apk", "microdnf"])
def test_sshd_and_python_are_installed_where_they_are_missing(pod: Pod, manager: str) -> None:
    folder = pod.only()
    real = shutil.which("python3")
    (pod.root / "usr/sbin").mkdir(parents=True)
    program(folder / manager, (
        f'#!/bin/sh\necho "$*" >>"{pod.root}/installed"\ncase "$*" in *update*) exit 0 ;; esac\n'
        f'cat >"{pod.root}/usr/sbin/sshd" <<"E"\n{SSHD.format(root=pod.root)}E\n'
        f'chmod 755 "{pod.root}/usr/sbin/sshd"\n[ -e "{folder}/python3" ] || '
        f'{shutil.which("ln")} -s {real} "{folder}/python3"\n'
    ))  # fmt: skip
    pod.begin(later())
    until((pod.root / "sshd.words").exists, "sshd runs")
    said = (pod.root / "installed").read_text()
    assert "python3" in said
    assert "openssh" in said
    assert not (pod.root / "usr/sbin/policy-rc.d").exists()


def test_an_image_where_nothing_can_be_installed_says_so_and_still_ends(pod: Pod) -> None:
    pod.only("curl")
    pod.begin(past())
    until(lambda: pod.api.asked, "the pod is ended")
    until(lambda: "cannot be installed" in (pod.root / "log").read_text(), "it says so")


def test_the_args_replace_an_entrypoint_and_hold_no_secret() -> None:
    assert json.loads(boot_script.ARGS) == {"entrypoint": ["sh", "-c"], "cmd": ['eval "$GPUOPS_START"']}
    assert "@" not in boot_script.BOOT.script("https://api.runpod.io/v2").replace("$@", "")


def test_an_address_of_the_api_stays_one_word() -> None:
    text = boot_script.BOOT.script("https://x.org/it's/v2")
    words = next(line for line in text.splitlines() if line.startswith("set -- "))
    done = subprocess.run(["sh", "-c", f'{words}; printf "%s" "$1"'], capture_output=True, text=True)
    assert done.stdout == "https://x.org/it's/v2", done.stderr
