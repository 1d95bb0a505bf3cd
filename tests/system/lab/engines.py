"""Docker and Podman on hosts of a lab, and an image for them, made of this machine's own files: none can be pulled.

What is real: dockerd, containerd and the runtime of each host, in the host's own namespaces, with a socket of its own.
The runtime is handed its configuration without what a machine for tests may forbid, which no test here is about:
limits that only a process with CAP_SYS_RESOURCE may raise, and cgroups.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.conftest import until
from tests.system.lab.hosts import Host

IMAGE = "base:1"
PROGRAMS = (
    "awk", "cat", "df", "env", "grep", "head", "id", "ls", "mkdir", "mktemp", "mv", "readlink", "rm", "rmdir", "sh",
    "sleep", "stat", "tail", "tr", "uname", "wc",
)  # fmt: skip
"""What an image has besides Python, as every distribution's has."""
WITHOUT = {"__pycache__", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "tkinter", "turtledemo"}
RUNTIME = (
    f"""#!/usr/bin/env -S PYTHONHOME={sys.base_prefix} /usr/local/lib/lab-python
"""
    """
import json, os, sys
for flag in ("--bundle", "-b", "--process", "-p"):
    if flag not in sys.argv:
        continue
    path = sys.argv[sys.argv.index(flag) + 1]
    path = os.path.join(path, "config.json") if os.path.isdir(path) else path
    document = json.load(open(path))
    process = document.get("process", document)
    for name in ("rlimits", "oomScoreAdj"):
        process.pop(name, None)
    if "linux" in document:
        document["linux"].pop("resources", None)
    json.dump(document, open(path, "w"))
os.execvp("crun", ["crun", "--cgroup-manager=disabled", *sys.argv[1:]])
"""
)
ENGINE_PROGRAMS = {"dockerd": "docker.io", "docker": "docker.io", "podman": "podman", "crun": "crun"}
PODMAN_FILES = {
    "containers.conf": """[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "lab"
[engine.runtimes]
lab = ["/usr/local/bin/lab-runtime"]
""",
    "storage.conf": """[storage]
driver = "overlay"
graphroot = "/run/podman"
runroot = "/run/podman-run"
""",
}
ROOTLESS_PROGRAMS = {"newuidmap": "uidmap"}
ROOTLESS = """
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /run/proc /run/dev
mount -t proc proc /run/proc # the kernel gives a user's namespace a /proc where there is one that nothing is mounted on
mount -t tmpfs -o mode=755 tmpfs /run/dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /run/dev
mkdir /run/dev/pts /run/dev/shm /run/dev/mqueue
mount --bind /dev/pts /run/dev/pts
mount -t tmpfs -o mode=1777 tmpfs /run/dev/shm
mount -t mqueue mqueue /run/dev/mqueue # this machine has none, and a --ipc=host without root takes one
ln -s pts/ptmx /run/dev/ptmx
ln -s /proc/self/fd /run/dev/fd
mount --rbind /run/dev /dev
"""
"""What systemd makes so on a machine, and a host of a lab has not; but for
`mount --make-rshared /`, of whose lack Podman warns."""
START_DOCKERD = """
grep -q " /sys/fs/cgroup " /proc/mounts || mount -t cgroup2 cgroup2 /sys/fs/cgroup
exec dockerd --data-root /run/docker-data --exec-root /run/docker-exec --host unix:///var/run/docker.sock \
    --pidfile /run/dockerd.pid --bridge none --iptables=false --ip6tables=false --storage-driver overlay2 \
    --add-runtime lab=/usr/local/bin/lab-runtime --default-runtime lab --group "$1" >/run/dockerd.log 2>&1
"""


def why_no_engines() -> str | None:
    """One reason why no host here can have containers; None when it can."""
    missing = [name for name in ENGINE_PROGRAMS if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
    packages = sorted({ENGINE_PROGRAMS[name] for name in missing})
    return f"containers need {', '.join(missing)} (Debian: {' '.join(packages)})" if missing else None


def give_docker(host: Host, image: Path, group: str = "root") -> None:
    """Start Docker's daemon on a host, and give it the image."""
    give_runtime(host)
    start_docker(host, group)
    load_image(host, "docker", image)


def start_docker(host: Host, group: str) -> None:
    subprocess.Popen(
        [*host.enter, "sh", "-c", START_DOCKERD, "sh", group],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    log = ["cat", "/run/dockerd.log"]
    until(lambda: host.run(["docker", "version"]).returncode == 0, lambda: f"dockerd: {host.run(log).stdout}")


def restart_docker(host: Host, group: str) -> None:
    """Stop the daemon, and what it runs, and start it again, as `systemctl restart docker` does."""
    pid = host.run(["cat", "/run/dockerd.pid"], check=True).stdout.strip()
    host.run(["kill", pid], check=True)
    until(lambda: not any(line.startswith("dockerd") for line in host.processes()), "the daemon's end")
    start_docker(host, group)


def give_podman(host: Host, image: Path) -> None:
    """Set Podman up on a host for root, and give it the image."""
    give_runtime(host)
    host.run(["mkdir", "-p", "/etc/containers"], check=True)
    for name, text in PODMAN_FILES.items():
        host.write(f"/etc/containers/{name}", text)
    host.run(["sh", "-c", "mount -t cgroup2 cgroup2 /sys/fs/cgroup"], check=True)
    load_image(host, "podman", image)


def why_no_rootless() -> str | None:
    """One reason why nobody but root can have containers on a host here; None when they can."""
    missing = [name for name in ROOTLESS_PROGRAMS if not shutil.which(name)]
    packages = " ".join(ROOTLESS_PROGRAMS[name] for name in missing)
    return f"containers without root need {', '.join(missing)} (Debian: {packages})" if missing else None


def give_rootless_podman(host: Host, image: Path, user: str) -> None:
    """Let a user who is not root have containers on a host, and give them the image. Podman is as it was installed,
    with its own runtime, and vfs for storage, since a lab's disk is an overlay."""
    host.run(["sh", "-euc", ROOTLESS], check=True)
    load_image(host, "podman", image, prefix=["su", user, "-c", '"$0" "$@"', "--"])


def give_runtime(host: Host) -> None:
    """The runtime has a Python of its own: a host's may be hidden."""
    shutil.copy2(os.path.realpath(sys.executable), f"/proc/{host.pid}/root/usr/local/lib/lab-python")
    host.write("/usr/local/bin/lab-runtime", RUNTIME)
    host.run(["chmod", "755", "/usr/local/bin/lab-runtime"], check=True)


def load_image(host: Host, engine: str, image: Path, name: str = IMAGE, prefix: Sequence[str] = ()) -> None:
    with open(image, "rb") as file:
        done = subprocess.run(
            [*host.enter, *prefix, engine, "import", "-", name], stdin=file, capture_output=True, check=False
        )
    assert done.returncode == 0, done.stderr


def make_image(path: Path) -> Path:
    """A tar of a root folder: a shell, its usual programs, and the Python that runs the tests, where it is here."""
    python, stdlib = os.path.realpath(sys.executable), sysconfig.get_path("stdlib")
    programs = [found for name in PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))]
    modules = [str(module) for module in Path(stdlib, "lib-dynload").glob("*.so")]
    with tarfile.open(path, "w") as tar:
        for folder in ("dev", "etc", "proc", "sys", "tmp", "usr/bin", "var/tmp"):
            _add_folder(tar, folder)
        for library in sorted(_libraries([*programs, python, *modules]) | _dlopened()):
            tar.add(os.path.realpath(library), library.lstrip("/"))
        for program in programs:
            tar.add(os.path.realpath(program), f"usr/bin/{os.path.basename(program)}")
        tar.add(python, python.lstrip("/"))
        tar.add(stdlib, stdlib.lstrip("/"), filter=_keep)
        _add_link(tar, "bin", "usr/bin")
        _add_link(tar, "usr/bin/python3", python)
    return path


def _libraries(files: Iterable[str]) -> set[str]:
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    words = (word for line in said.splitlines() if line.startswith("\t") for word in line.split())
    return {word for word in words if word.startswith("/")}


def _dlopened() -> set[str]:
    """What glibc loads when a thread ends, which no program names."""
    said = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return {line.split()[-1] for line in said.splitlines() if "libgcc_s.so.1 " in line}


def _keep(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = os.path.basename(entry.name)
    return None if name in WITHOUT or name.startswith("config-") or name.endswith(".a") else entry


def _add_folder(tar: tarfile.TarFile, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
    tar.addfile(entry)


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)
