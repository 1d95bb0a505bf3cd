"""What is wrong with a place but for its GPUs: disks, limits, clock, who may end what. Pure."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuops.commands.doctor.report import Checkup, Finding, error, format_size, note, warning
from gpuops.core.format import plural

DISK_FULL_BYTES = 50_000_000
"""Below so many free bytes nothing can be brought to a place."""
DISK_LOW_BYTES = 2 * 2**30
ENVIRONMENT_BYTES = 10 * 2**30
"""What an environment with torch and CUDA takes while it is made."""
INODES_MIN = 1000
SHM_MIN_BYTES = 2**30
"""Less shared memory than this is gone with the first batches of a few data loader workers."""
OPEN_FILES_MIN = 1024
LOCKED_MEMORY_MIN_BYTES = 2**30
CLOCK_SKEW_MAX_S = 5.0
NETWORK_FILE_SYSTEMS = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "glusterfs", "fuse.glusterfs",
    "fuse.sshfs", "afs", "panfs", "wekafs", "9p",
})  # fmt: skip
DISK_NAMES = {"home": "the home folder", "root": "the root disk", "tmp": "the folder for temporary files",
          "node": "the node's folder"}  # fmt: skip
OTHER_SHELLS = frozenset({"fish", "csh", "tcsh", "xonsh", "nu", "elvish"})

Rule = Callable[[Checkup], Iterator[Finding]]


def host_findings(place: Checkup) -> Iterator[Finding]:
    """Everything but GPUs and torch."""
    for rule in RULES:
        yield from rule(place)
    for name, why in (place.facts.get("failed") or {}).items():
        yield note("probe", f"{name} could not be looked at: {why}", "look at it there by hand")


def _disks(place: Checkup) -> Iterator[Finding]:
    seen: set[str] = set()
    for disk in place.facts.get("disks") or []:
        if disk["of"] != "shm":
            yield from _disk(disk, place, new=disk.get("mount", disk["path"]) not in seen)
            seen.add(disk.get("mount", disk["path"]))


def _disk(disk: Mapping[str, Any], place: Checkup, *, new: bool) -> Iterator[Finding]:
    called = f"{DISK_NAMES.get(disk['of'], disk['of'])} ({disk['path']})"
    if disk.get("slow"):
        yield error("disk-hangs", f"{called} does not answer", "see whether its file server is there: mount | grep nfs")
        return
    if not disk.get("there"):
        return
    if not disk.get("writable") and disk["of"] != "root":
        yield error("disk-unwritable", f"{called} cannot be written", "make it writable, or log in as another user")
    if new:
        yield from _space(disk, called, makes=place.python is None and disk["of"] in ("home", "node"))


def _space(disk: Mapping[str, Any], called: str, *, makes: bool) -> Iterator[Finding]:
    free, total, inodes = int(disk["free"]), int(disk["total"]), int(disk["inodes"])
    free_up = f"free some space there: du -xh {disk['mount']} | sort -h | tail"
    if free < DISK_FULL_BYTES:
        yield error("disk-full", f"{called} is full: {format_size(free)} of {format_size(total)} are free", free_up)
    elif makes and free < ENVIRONMENT_BYTES:
        takes = format_size(ENVIRONMENT_BYTES)
        say = f"{called} has {format_size(free)} free, and an environment with torch for GPUs takes up to {takes}"
        yield warning("disk-little", say, free_up)
    elif free < DISK_LOW_BYTES:
        yield warning("disk-little", f"{called} has only {format_size(free)} of {format_size(total)} free", free_up)
    if inodes and int(disk["inodes_free"]) < INODES_MIN:
        yield error(
            "inodes",
            f"{called} has {plural(int(disk['inodes_free']), 'inode')} left: no more files fit, whatever the space",
            "remove folders with many small files: old environments, unpacked data",
        )


def _shm(place: Checkup) -> Iterator[Finding]:
    shm = place.disk("shm")
    if not shm.get("there") or int(shm["total"]) >= SHM_MIN_BYTES:
        return
    container = bool(place.part("machine").get("container"))
    remount = "sudo mount -o remount,size=16g /dev/shm"
    larger = "start the container with --shm-size=16g or --ipc=host" if container else remount
    yield warning(
        "shm",
        f"/dev/shm has {format_size(int(shm['total']))}: data loader workers may die with 'Bus error'",
        f"{larger}; or train with num_workers=0",
    )


def _home_on_network(place: Checkup) -> Iterator[Finding]:
    kind = place.disk("home").get("kind")
    if kind in NETWORK_FILE_SYSTEMS:
        yield note(
            "home-network",
            f"the home folder is on a network file system ({kind})",
            "nothing for gpuops; keep data that is read in every epoch on a local disk",
        )


def _cores(place: Checkup) -> Iterator[Finding]:
    cores, gpus = int(place.part("machine").get("cores") or 0), len(place.gpus)
    if 0 < cores < gpus:
        yield warning(
            "cores",
            f"{plural(cores, 'core')} for {plural(gpus, 'GPU')}: reading data will be slower than training",
            "take a machine with more cores per GPU, or prepare the data beforehand",
        )


def _limits(place: Checkup) -> Iterator[Finding]:
    limits = place.part("limits")
    files, locked = limits.get("files"), limits.get("locked")
    if files is not None and files < OPEN_FILES_MIN:
        yield warning(
            "open-files",
            f"a process may open {files} files: data loader workers need more (Too many open files)",
            "raise it: a line '* - nofile 65536' in /etc/security/limits.conf, then log in again",
        )
    adapters = place.facts.get("infiniband") or []
    if adapters and locked is not None and locked < LOCKED_MEMORY_MIN_BYTES:
        yield warning(
            "locked-memory",
            f"InfiniBand ({', '.join(adapters)}) needs locked memory, "
            f"{format_size(locked)} of it is allowed: NCCL may fail",
            "raise it: a line '* - memlock unlimited' in /etc/security/limits.conf, then log in again",
        )


def _scheduler(place: Checkup) -> Iterator[Finding]:
    scheduler = place.part("scheduler")
    if scheduler.get("programs") and not scheduler.get("job"):
        name = scheduler["programs"][0]
        yield warning(
            "scheduler",
            f"this host belongs to a cluster with a scheduler ({name} is here), and this is not inside a job: "
            "it is a login node, or one where others' jobs run",
            "do not train here: ask the scheduler for nodes, and give gpuops those",
        )


def _logind(place: Checkup) -> Iterator[Finding]:
    logind, user = place.part("logind"), place.part("machine").get("user")
    if not (logind.get("runs") and logind.get("kills")) or logind.get("spared") or logind.get("lingers"):
        return
    say = "KillUserProcesses=yes: systemd ends everything of a user with the last login, runs as well"
    keep = f"loginctl enable-linger {user}"
    yield error("logout-kills", say, keep) if place.reached else warning("logout-kills", say, keep)


def _login(place: Checkup) -> Iterator[Finding]:
    login = place.part("login")
    shell = str(login.get("shell") or "")
    if os.path.basename(shell) in OTHER_SHELLS:
        yield note(
            "shell",
            f"the login shell is {shell}, which reads backslashes and newlines in its own way",
            "for gpuops ssh -- with such arguments: chsh -s /bin/bash",
        )
    if login.get("slow"):
        yield warning(
            "shell-slow", f"the login shell {shell} takes more than 10 s to start", "look at what its start-up files do"
        )
    elif said := str(login.get("said") or "").strip():
        yield note(
            "shell-talks",
            f"the login shell prints something ({said.splitlines()[0][:60]}): gpuops is not hurt, scp and rsync are",
            "have .bashrc print in interactive shells only: [[ $- == *i* ]] || return",
        )


def _name(place: Checkup) -> Iterator[Finding]:
    name = place.part("name")
    if not place.reached or not name:
        return
    addresses = name.get("addresses") or []
    if not addresses:
        say = f"the host does not know its own name ({name.get('name')}): gpuops is not hurt, torchrun by hand is"
    elif all(address.startswith("127.") or address == "::1" for address in addresses):
        say = (
            f"the host's name {name.get('name')} means {addresses[0]}, where no other host reaches it: "
            "gpuops is not hurt, torchrun by hand is"
        )
    else:
        return
    yield note("host-name", say, "nothing for gpuops; else give the name its address in /etc/hosts")


def _variables(place: Checkup) -> Iterator[Finding]:
    if names := place.part("variables").get("torchrun"):
        several = len(names) > 1
        yield note(
            "variables",
            f"{', '.join(names)} {'are' if several else 'is'} set here, which torchrun would believe: "
            f"gpuops takes {'them' if several else 'it'} away",
            "nothing for gpuops; unset before you start torchrun by hand",
        )


def _misspelt(place: Checkup) -> Iterator[Finding]:
    for name in place.facts.get("misspelt") or []:
        yield note(
            "misspelt", f"~/.ssh/{name} looks like authorized_keys misspelt", f"mv ~/.ssh/{name} ~/.ssh/authorized_keys"
        )


def _clock(place: Checkup) -> Iterator[Finding]:
    if place.clock is None:
        return
    low, high = place.clock
    by = low if low > 0 else -high
    if by > CLOCK_SKEW_MAX_S:
        yield warning(
            "clock",
            f"its clock is {by:.0f} s {'behind' if low > 0 else 'ahead of'} this computer's",
            "turn NTP on where it is off: sudo timedatectl set-ntp true",
        )


RULES: tuple[Rule, ...] = (
    _disks, _shm, _home_on_network, _cores, _limits, _scheduler, _logind, _login, _name, _variables, _misspelt, _clock,
)  # fmt: skip
