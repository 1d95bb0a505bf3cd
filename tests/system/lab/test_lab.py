"""The lab itself: hosts that are apart, reachable as said, breakable as said, and gone at the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.conftest import HANG_S, until
from tests.system.lab.available import why_no_lab
from tests.system.lab.host import Host
from tests.system.lab.hosts import Lab

SILENT = 124
"""What `timeout` answers for a connection that nobody refuses."""
REFUSED = 1
ROOT = Path(__file__).parents[3]

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def quiet() -> Iterator[Lab]:
    """A lab whose hosts the tests only look at."""
    if reason := why_no_lab():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder) / "lab") as one:
        yield one


def over_ssh(host: Host, line: str) -> str:
    done = subprocess.run([*host.ssh, line], capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr + host.sshd_log
    return done.stdout.strip()


@contextmanager
def session(host: Host, line: str = "echo up; exec sleep 4321") -> Iterator[subprocess.Popen[bytes]]:
    """A login that lasts, once it has said "up"."""
    with subprocess.Popen([*host.ssh, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ssh:
        try:
            assert ssh.stdout
            assert ssh.stdout.readline() == b"up\n"
            yield ssh
        finally:
            ssh.kill()


def said(host: Host, *argv: str) -> str:
    return host.run(argv).stdout.strip()


def knock(enter: list[str], address: str, port: int = 22, patience_s: float = 30.0) -> int:
    """0, REFUSED or SILENT: what a connection comes to."""
    line = f"exec 3<>/dev/tcp/{address}/{port}"
    done = subprocess.run([*enter, "timeout", str(patience_s), "bash", "-c", line], capture_output=True, timeout=HANG_S)
    return done.returncode


def silent(enter: list[str], address: str, port: int = 22) -> bool:
    return knock(enter, address, port, patience_s=1.0) == SILENT


def test_two_hosts_are_apart(lab: Lab) -> None:
    a, b = lab.host("a"), lab.host("b")
    assert over_ssh(a, "uname -n; whoami; pwd") == "a\nroot\n/root"
    assert over_ssh(b, "uname -n") == "b"
    assert a.processes() == b.processes() == []

    over_ssh(a, "touch /etc/of-a /root/of-a /tmp/of-a /dev/shm/of-a; setsid sleep 4321 >/dev/null 2>&1 &")
    until(lambda: a.processes() == ["sleep 4321"], "the process has its program")  # until then it is called setsid
    assert "sleep 4321" in over_ssh(a, "cat /proc/*/cmdline | tr '\\0' ' '")
    assert b.processes() == []
    assert "sleep 4321" not in over_ssh(b, "cat /proc/*/cmdline | tr '\\0' ' '")
    for folder in ("/etc", "/root", "/tmp", "/dev/shm"):
        assert "of-a" in a.files(folder)
        assert "of-a" not in b.files(folder)
        assert not Path(folder, "of-a").exists()
    assert said(a, "cat", "/proc/sys/kernel/random/boot_id") != said(b, "cat", "/proc/sys/kernel/random/boot_id")
    assert said(a, "cat", "/etc/machine-id") != said(b, "cat", "/etc/machine-id")


def test_another_key_does_not_get_in(quiet: Lab, tmp_path: Path) -> None:
    host = quiet.host("strict")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    argv = [str(tmp_path / "other") if word == str(host.identity) else word for word in host.ssh]
    done = subprocess.run([*argv, "true"], capture_output=True, text=True, timeout=HANG_S)
    assert "Permission denied (publickey" in done.stderr
    assert done.returncode == 255


def test_the_users_own_settings_are_not_there(quiet: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_SECRET_OF_THE_USER", "1")
    host = quiet.host("clean")
    assert host.files("/root") == []
    assert "GPUOPS_" not in over_ssh(host, "env") + said(host, "env") + over_ssh(host, "cat /proc/1/environ")


NAMES = {
    "plain": ("n1", ["n1", "n2"], []),
    "unresolvable": ("n1", [], ["n1", "n2"]),
    "127.0.1.1": ("n1", ["n1", "n2"], []),
    "same": ("gpu-node", ["gpu-node"], ["n1", "n2"]),
}
"""names -> own host name, names that resolve, names that do not."""


@pytest.mark.parametrize("names", NAMES)
def test_names(lab: Lab, names: str) -> None:
    one, two = lab.host("n1", names=names), lab.host("n2", names=names)
    own, known, unknown = NAMES[names]
    assert over_ssh(one, "uname -n") == own

    expected = {"n1": one.address, "n2": two.address, "gpu-node": one.address}
    if names == "127.0.1.1":
        expected["n1"] = "127.0.1.1"
    for name in known:
        assert said(one, "getent", "ahosts", name).split()[0] == expected[name]
    for name in unknown:
        assert one.run(["getent", "ahosts", name]).returncode == 2
    assert one.run(["getent", "ahosts", "pytorch.org"]).returncode == 2  # said at once: there is no name server


def test_docker0_is_the_same_everywhere(quiet: Lab) -> None:
    hosts = [quiet.host("d1", docker0=True), quiet.host("d2", docker0=True)]
    for host in hosts:
        assert "inet 172.17.0.1/16" in said(host, "ip", "-4", "addr", "show", "docker0")
        assert f"inet {host.address}/16" in said(host, "ip", "-4", "addr", "show", "eth0")
    assert quiet.host("d3").run(["ip", "link", "show", "docker0"]).returncode != 0


def test_ipv6_only(quiet: Lab) -> None:
    six, other, four = quiet.host("six", ipv6_only=True), quiet.host("other", ipv6_only=True), quiet.host("four")
    assert ":" in six.address
    assert over_ssh(six, "uname -n") == "six"
    assert said(six, "ip", "-4", "addr", "show", "eth0") == ""
    assert knock(other.enter, six.address) == 0
    assert knock(six.enter, four.address) == REFUSED  # no route
    assert said(four, "getent", "ahosts", "six").split()[0] == six.address


def test_cut_and_mend(lab: Lab) -> None:
    a, b, six = lab.host("a"), lab.host("b"), lab.host("c", ipv6_only=True)
    lab.cut(a, b)
    assert silent(a.enter, b.address)
    assert silent(b.enter, a.address)
    assert knock(lab.enter, a.address) == 0
    lab.mend(a, b)
    assert knock(a.enter, b.address) == 0

    for host in (a, six):
        lab.cut(host)
        assert silent(lab.enter, host.address)
        lab.mend(host)
        assert knock(lab.enter, host.address) == 0


def test_a_cut_ends_no_connection(lab: Lab) -> None:
    host = lab.host("a")
    with session(host, "echo up; cat") as ssh:
        assert ssh.stdin
        assert ssh.stdout
        ssh.stdin.write(b"before\n")
        ssh.stdin.flush()
        assert ssh.stdout.readline() == b"before\n"
        lab.cut(host)
        ssh.stdin.write(b"after\n")
        ssh.stdin.flush()
        lab.mend(host)
        assert ssh.stdout.readline() == b"after\n"
        ssh.stdin.close()
        assert ssh.wait(HANG_S) == 0


def test_block_everything_but_ssh(lab: Lab) -> None:
    a, b = lab.host("a"), lab.host("b")
    assert knock(b.enter, a.address, 8000) == REFUSED
    lab.block(a, "1-21, 23-65535")
    assert silent(b.enter, a.address, 8000)
    assert knock(b.enter, a.address) == 0
    assert knock(a.enter, a.address, 8000) == REFUSED  # its own programs are not hindered,
    assert knock(a.enter, b.address) == 0  # nor what it calls itself
    lab.unblock(a)
    assert knock(b.enter, a.address, 8000) == REFUSED

    lab.block(a, "22", direction="out")
    assert silent(a.enter, b.address)
    assert knock(b.enter, a.address) == 0


def test_vanish_says_no_goodbye(lab: Lab) -> None:
    a, b = lab.host("a"), lab.host("b")
    with session(a) as ssh:
        inside = [psutil.Process(a.pid), *psutil.Process(a.pid).children(recursive=True)]
        assert len(inside) > 2
        a.vanish()
        a.vanish()
        assert not _alive(inside)
        assert knock(lab.enter, a.address, patience_s=1.0) != 0
        assert knock(b.enter, a.address, patience_s=1.0) != 0
        assert ssh.poll() is None
    assert knock(lab.enter, b.address) == 0


def test_reboot_keeps_the_disk(lab: Lab) -> None:
    host = lab.host("a")
    over_ssh(host, "echo kept > /root/file; touch /etc/kept /tmp/lost; setsid sleep 4321 >/dev/null 2>&1 &")
    before = said(host, "cat", "/proc/sys/kernel/random/boot_id")
    host.reboot()
    assert over_ssh(host, "cat /root/file") == "kept"
    assert "kept" in host.files("/etc")
    assert host.files("/tmp") == []
    assert host.processes() == []
    assert said(host, "cat", "/proc/sys/kernel/random/boot_id") != before


def test_a_cut_holds_across_a_reboot(lab: Lab) -> None:
    host = lab.host("a")
    lab.cut(host)
    host.reboot()
    assert silent(lab.enter, host.address)


def test_one_shared_home(lab: Lab, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    a, b, own = lab.host("a", home=home), lab.host("b", home=home), lab.host("c")
    over_ssh(a, "echo hello > file")
    assert over_ssh(b, "cat file") == "hello"
    assert (home / "file").read_text() == "hello\n"
    assert a.files("/root") == b.files("/root") == ["file"]
    assert own.files("/root") == []
    lab.close()
    assert (home / "file").exists()


def test_sshd_can_be_stopped_and_sessions_killed(lab: Lab) -> None:
    host = lab.host("a")
    with session(host) as ssh:
        host.stop_sshd()
        assert knock(lab.enter, host.address) == REFUSED
        assert ssh.poll() is None
        host.start_sshd()
        assert over_ssh(host, "echo again") == "again"

        assert host.kill_sessions()
        assert ssh.wait(HANG_S) == 255
    until(lambda: host.processes() == ["sleep 4321"], "what was started over a session that was killed stays")
    assert over_ssh(host, "echo again") == "again"


def test_sshd_options_come_first(quiet: Lab) -> None:
    host = quiet.host("banner", port=2222, sshd_options=["PermitUserEnvironment yes", "SetEnv FROM_SSHD=1"])
    assert over_ssh(host, "echo $FROM_SSHD $SSH_CONNECTION").split()[0] == "1"
    assert knock(quiet.enter, host.address) == REFUSED


def test_programs_can_be_missing(quiet: Lab) -> None:
    poor, rich = quiet.host("poor", python3=False, rsync=False, torch=False), quiet.host("rich")
    look = "command -v python3; command -v rsync; ls -d /opt/pytorch; true"
    assert over_ssh(poor, look) == ""
    assert [Path(path).name for path in over_ssh(rich, look).split()][-2:] == ["rsync", "pytorch"]


def test_the_tests_own_python_runs_in_a_host(quiet: Lab) -> None:
    host = quiet.host("python")
    question = "import sys; print(*sys.version_info[:3], sys.prefix)"
    version = [str(part) for part in sys.version_info[:3]]
    assert said(host, "/opt/pytorch/bin/python", "-c", question).split() == [*version, "/opt/pytorch"]
    assert said(host, sys.executable, "-c", question).split() == [*version, sys.prefix]


def test_two_labs_at_once(lab: Lab, tmp_path: Path) -> None:
    one = lab.host("a")
    with Lab(tmp_path / "second") as second:
        two = second.host("a")
        assert one.address == two.address
        over_ssh(one, "touch /root/of-one")
        assert over_ssh(two, "ls /root") == ""
    assert over_ssh(one, "ls /root") == "of-one"


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that only waits for its parent to look does not."""
    found = []
    for one in processes:
        try:
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except psutil.NoSuchProcess:
            continue
    return found


def _mounts(folder: Path) -> list[str]:
    """Processes that have something mounted under a folder, or from there."""
    found = []
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            if f"{folder}/" in table.read_text():
                found.append(str(table))
        except OSError:
            continue  # ended meanwhile
    return found


def _named_networks() -> set[int]:
    """The network namespaces that have a name on this machine; other tests make and remove some."""
    found = set()
    for path in Path("/run/netns").glob("*"):
        try:
            found.add(path.stat().st_ino)
        except FileNotFoundError:
            continue
    return found


def test_nothing_is_left(lab: Lab) -> None:
    """Of a full lab with programs in it and on its laptop."""
    a, b = lab.host("a", docker0=True), lab.host("b", ipv6_only=True)
    lab.block(a, "8000")
    over_ssh(a, "setsid sleep 4321 >/dev/null 2>&1 &")
    laptop = subprocess.Popen([*lab.enter, "sleep", "4321"], start_new_session=True)
    firsts = [lab.laptop.pid, a.pid, b.pid]
    networks = {Path(f"/proc/{pid}/ns/net").stat().st_ino for pid in firsts}
    assert len(networks) == 3

    def found() -> list[psutil.Process]:
        """The first processes, an sshd each, and the sleep; the login's own sshd may take a moment to end."""
        all_ = [one for first in map(psutil.Process, firsts) for one in (first, *first.children(recursive=True))]
        return all_ if len(all_) == 6 else []

    inside = until(found, "six processes")
    assert _mounts(lab.folder)
    assert str(lab.folder) not in Path("/proc/self/mountinfo").read_text()  # none of it on the machine itself
    assert not networks & _named_networks()

    lab.close()
    lab.close()
    assert laptop.wait(HANG_S) == -signal.SIGKILL
    assert not _alive(inside)
    assert not _mounts(lab.folder)
    assert not lab.folder.exists()


_OWNER = """
import sys, time
from pathlib import Path
from tests.system.lab.hosts import Lab

lab = Lab(Path(sys.argv[1]))
print(lab.laptop.pid, lab.host("a").pid, lab.host("b").pid, flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("lab")
def test_hosts_end_with_a_killed_test_run(tmp_path: Path) -> None:
    folder = tmp_path / "owner"
    with subprocess.Popen([sys.executable, "-c", _OWNER, folder], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        inside = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(inside) == 3
        inside += [child for process in inside for child in process.children(recursive=True)]
        owner.kill()
    until(lambda: not _alive(inside), "the killed run's processes ended")
    until(lambda: not _mounts(folder), "its mounts are gone")
    with Lab(folder) as again:  # what it left there is no hindrance
        assert over_ssh(again.host("a"), "uname -n") == "a"
    assert not folder.exists()


@needs_torch
@pytest.mark.real_torch
def test_torch_is_found_in_a_host(quiet: Lab) -> None:
    import torch

    host = quiet.host("torch")
    question = "import torch; print(torch.__version__)"
    assert over_ssh(host, f"/opt/pytorch/bin/python -c '{question}'") == torch.__version__


_TRAIN = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(4, 1))
for step in range(5):
    model.zero_grad()
    model(torch.rand(8, 4)).sum().backward()
total = sum(float(p.grad.sum()) for p in model.parameters())
print("rank", dist.get_rank(), "of", dist.get_world_size(), "on", os.uname().nodename, "grad", round(total, 4))
time.sleep(1)  # gloo fails who has not looked at its last exchange's end when the other leaves
dist.destroy_process_group()
"""


@pytest.mark.proof  # test_launch.py does the same with gpuops
@needs_torch
@pytest.mark.real_torch
def test_two_hosts_train_with_plain_torchrun(lab: Lab) -> None:
    """By the launch line that gpuops uses, on hosts with every trap for it."""
    hosts = [lab.host(name, names="127.0.1.1", docker0=True) for name in ("a", "b")]
    started = []
    for i, host in enumerate(hosts):
        host.write("/root/train.py", _TRAIN)
        line = (
            "env OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0 /opt/pytorch/bin/torchrun"
            f" --nnodes=2 --node-rank={i} --nproc-per-node=1 --master-addr={hosts[0].address} --master-port=20001"
            " --rdzv-id=r1 --rdzv-conf=timeout=300 --max-restarts=0 train.py"
        )
        started.append(subprocess.Popen([*host.ssh, line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [process.communicate(timeout=HANG_S)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    ranks = [line for text in said for line in text.splitlines() if line.startswith("rank")]
    assert [line.split(" grad ")[0] for line in ranks] == ["rank 0 of 2 on a", "rank 1 of 2 on b"]
    assert len({line.split(" grad ")[1] for line in ranks}) == 1
