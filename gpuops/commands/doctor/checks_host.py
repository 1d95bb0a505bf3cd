"""Checks of one host apart from its GPUs: disks, limits, scheduler, login, names, clock. Pure.

Disks are judged one by one; every other check is a row of `HOST_RULES` or `CLOCK_RULES`.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping

from gpuops.commands.doctor.facts import Checkup, DiskFacts
from gpuops.commands.doctor.report import Finding, Rule, apply_rules, error, format_size, note, warning
from gpuops.core.format import plural

DISK_FULL_BYTES = 50_000_000
"""With fewer free bytes not even the agent and a small project can be sent."""
DISK_LOW_BYTES = 2 * 2**30
"""With fewer free bytes a few checkpoints fill the disk."""
ENVIRONMENT_BYTES = 10 * 2**30
"""Bytes that an environment with torch and CUDA takes while it is made."""
INODES_MIN = 1000
"""With fewer free inodes unpacking an environment fails."""
SHM_MIN_BYTES = 2**30
"""A smaller /dev/shm is full after the first batches of a few data loader workers."""
OPEN_FILES_MIN = 1024
"""The usual default; each data loader worker opens a few per tensor that it hands over."""
LOCKED_MEMORY_MIN_BYTES = 2**30
"""NCCL registers its buffers as locked memory where it uses InfiniBand."""
CLOCK_SKEW_MAX_S = 5.0
"""Seconds between a host's clock and ours that are no finding: NTP keeps clocks far closer."""
NETWORK_FILE_SYSTEMS = frozenset({
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "glusterfs", "fuse.glusterfs",
    "fuse.sshfs", "afs", "panfs", "wekafs", "9p",
})  # fmt: skip
DISK_NAMES = {"home": "the home folder", "root": "the root disk", "tmp": "the folder for temporary files",
          "node": "the node's folder"}  # fmt: skip
OTHER_SHELLS = frozenset({"fish", "csh", "tcsh", "xonsh", "nu", "elvish"})

Words = Mapping[str, object] | None
"""What fills a finding's sentences; None where nothing is wrong (`report.Rule`)."""


def host_findings(place: Checkup) -> Iterator[Finding]:
    """Findings about everything but GPUs and torch."""
    yield from _check_disks(place)
    yield from apply_rules(HOST_RULES, place)
    yield from _check_misspelt_files(place)
    yield from apply_rules(CLOCK_RULES, place)
    for name, why in place.facts.failed.items():
        yield note("probe", f"{name} could not be looked at: {why}", "look at it there by hand")


def _check_disks(place: Checkup) -> Iterator[Finding]:
    mounts: set[str] = set()
    for disk in place.facts.disks:
        if disk.of != "shm":
            mount = disk.path if disk.mount is None else disk.mount
            yield from _check_disk(disk, place, new=mount not in mounts)
            mounts.add(mount)


def _check_disk(disk: DiskFacts, place: Checkup, *, new: bool) -> Iterator[Finding]:
    """Findings about one folder's disk. `new`: no folder before it was on the same file system."""
    title = f"{DISK_NAMES.get(disk.of, disk.of)} ({disk.path})"
    if disk.slow:
        yield error("disk-hangs", f"{title} does not answer", "see whether its file server is there: mount | grep nfs")
        return
    if not disk.there:
        return
    if not disk.writable and disk.of != "root":
        yield error("disk-unwritable", f"{title} cannot be written", "make it writable, or log in as another user")
    if new:
        yield from _check_space(disk, title, makes=place.python is None and disk.of in ("home", "node"))


def _check_space(disk: DiskFacts, title: str, *, makes: bool) -> Iterator[Finding]:
    """Findings about free space and inodes. `makes`: the first run makes an environment there."""
    free, total = disk.free, disk.total
    free_up = f"free some space there: du -xh {disk.mount} | sort -h | tail"
    if free < DISK_FULL_BYTES:
        yield error("disk-full", f"{title} is full: {format_size(free)} of {format_size(total)} are free", free_up)
    elif makes and free < ENVIRONMENT_BYTES:
        takes = format_size(ENVIRONMENT_BYTES)
        say = f"{title} has {format_size(free)} free, and an environment with torch for GPUs takes up to {takes}"
        yield warning("disk-little", say, free_up)
    elif free < DISK_LOW_BYTES:
        yield warning("disk-little", f"{title} has only {format_size(free)} of {format_size(total)} free", free_up)
    if disk.inodes and disk.inodes_free < INODES_MIN:
        yield error(
            "inodes",
            f"{title} has {plural(disk.inodes_free, 'inode')} left: no more files fit, whatever the space",
            "remove folders with many small files: old environments, unpacked data",
        )


def _check_misspelt_files(place: Checkup) -> Iterator[Finding]:
    for name in place.facts.misspelt:
        yield note(
            "misspelt", f"~/.ssh/{name} looks like authorized_keys misspelt", f"mv ~/.ssh/{name} ~/.ssh/authorized_keys"
        )


def _small_shared_memory(place: Checkup) -> Words:
    shm = place.disk("shm")
    if shm is None or not shm.there or shm.total >= SHM_MIN_BYTES:
        return None
    remount = "sudo mount -o remount,size=16g /dev/shm"
    in_container = place.facts.machine.container
    larger = "start the container with --shm-size=16g or --ipc=host" if in_container else remount
    return {"size": format_size(shm.total), "larger": larger}


def _network_home(place: Checkup) -> Words:
    home = place.disk("home")
    return {"kind": home.kind} if home and home.kind in NETWORK_FILE_SYSTEMS else None


def _few_cores(place: Checkup) -> Words:
    cores, gpus = place.facts.machine.cores, len(place.gpus)
    return {"cores": plural(cores, "core"), "gpus": plural(gpus, "GPU")} if 0 < cores < gpus else None


def _few_open_files(place: Checkup) -> Words:
    files = place.facts.limits.files
    return {"files": files} if files is not None and files < OPEN_FILES_MIN else None


def _little_locked_memory(place: Checkup) -> Words:
    adapters, locked = place.facts.infiniband, place.facts.limits.locked
    if not adapters or locked is None or locked >= LOCKED_MEMORY_MIN_BYTES:
        return None
    return {"adapters": ", ".join(adapters), "locked": format_size(locked)}


def _outside_a_job(place: Checkup) -> Words:
    scheduler = place.facts.scheduler
    if not scheduler.programs or scheduler.job:
        return None
    program = scheduler.programs[0]
    provider = {"sinfo": "slurm", "squeue": "slurm", "qstat": "pbs"}.get(program)
    way = (
        f"gpuops doctor {provider} says what it has, gpuops up {provider} asks it for nodes"
        if provider
        else "ask it for nodes, and give gpuops those"
    )
    return {"program": program, "way": way}


def _killed_at_logout(place: Checkup) -> Words:
    return {"user": place.facts.machine.user} if place.facts.logind.kills_runs else None


def _other_shell(place: Checkup) -> Words:
    shell = place.facts.login.shell if place.facts.login else ""
    return {"shell": shell} if os.path.basename(shell) in OTHER_SHELLS else None


def _slow_shell(place: Checkup) -> Words:
    login = place.facts.login
    return {"shell": login.shell} if login and login.slow else None


def _printing_shell(place: Checkup) -> Words:
    login = place.facts.login
    greeting = login.said.strip() if login and not login.slow else ""
    return {"line": greeting.splitlines()[0][:60]} if greeting else None


def _unknown_name(place: Checkup) -> Words:
    name = place.facts.name
    return {"name": name.name} if place.reached and name and not name.addresses else None


def _loopback_name(place: Checkup) -> Words:
    name = place.facts.name
    if not place.reached or name is None or not name.addresses:
        return None
    loopback = all(address.startswith("127.") or address == "::1" for address in name.addresses)
    return {"name": name.name, "address": name.addresses[0]} if loopback else None


def _torchrun_variables(place: Checkup) -> Words:
    names = place.facts.variables.torchrun
    if not names:
        return None
    are, them = ("are", "them") if len(names) > 1 else ("is", "it")
    return {"names": ", ".join(names), "are": are, "them": them}


def _clock_skew(place: Checkup) -> Words:
    if place.clock is None:
        return None
    low, high = place.clock
    seconds = low if low > 0 else -high
    side = "behind" if low > 0 else "ahead of"
    return {"seconds": f"{seconds:.0f}", "side": side} if seconds > CLOCK_SKEW_MAX_S else None


LOGOUT_SAY = "KillUserProcesses=yes: systemd ends everything of a user with the last login, runs as well"
LOGOUT_HINT = "loginctl enable-linger {user}"
NAME_HINT = "nothing for gpuops; else give the name its address in /etc/hosts"

HOST_RULES: tuple[Rule[Checkup], ...] = (
    Rule(_small_shared_memory, warning(
        "shm", "/dev/shm has {size}: data loader workers may die with 'Bus error'",
        "{larger}; or train with num_workers=0",
    )),
    Rule(_network_home, note(
        "home-network", "the home folder is on a network file system ({kind})",
        "nothing for gpuops; keep data that is read in every epoch on a local disk",
    )),
    Rule(_few_cores, warning(
        "cores", "{cores} for {gpus}: reading data will be slower than training",
        "take a machine with more cores per GPU, or prepare the data beforehand",
    )),
    Rule(_few_open_files, warning(
        "open-files", "a process may open {files} files: data loader workers need more (Too many open files)",
        "raise it: a line '* - nofile 65536' in /etc/security/limits.conf, then log in again",
    )),
    Rule(_little_locked_memory, warning(
        "locked-memory", "InfiniBand ({adapters}) needs locked memory, {locked} of it is allowed: NCCL may fail",
        "raise it: a line '* - memlock unlimited' in /etc/security/limits.conf, then log in again",
    )),
    Rule(_outside_a_job, warning(
        "scheduler",
        "this host belongs to a cluster with a scheduler ({program} is here), and this is not inside a job: "
        "it is a login node, or one where others' jobs run",
        "do not train here: {way}",
    )),
    Rule(lambda place: _killed_at_logout(place) if place.reached else None,
         error("logout-kills", LOGOUT_SAY, LOGOUT_HINT)),
    Rule(lambda place: None if place.reached else _killed_at_logout(place),
         warning("logout-kills", LOGOUT_SAY, LOGOUT_HINT)),
    Rule(_other_shell, note(
        "shell", "the login shell is {shell}, which reads backslashes and newlines in its own way",
        "for gpuops ssh -- with such arguments: chsh -s /bin/bash",
    )),
    Rule(_slow_shell, warning(
        "shell-slow", "the login shell {shell} takes more than 10 s to start", "look at what its start-up files do",
    )),
    Rule(_printing_shell, note(
        "shell-talks", "the login shell prints something ({line}): gpuops is not hurt, scp and rsync are",
        "have .bashrc print in interactive shells only: [[ $- == *i* ]] || return",
    )),
    Rule(_unknown_name, note(
        "host-name", "the host does not know its own name ({name}): gpuops is not hurt, torchrun by hand is", NAME_HINT,
    )),
    Rule(_loopback_name, note(
        "host-name",
        "the host's name {name} means {address}, where no other host reaches it: "
        "gpuops is not hurt, torchrun by hand is",
        NAME_HINT,
    )),
    Rule(_torchrun_variables, note(
        "variables", "{names} {are} set here, which torchrun would believe: gpuops takes {them} away",
        "nothing for gpuops; unset before you start torchrun by hand",
    )),
)  # fmt: skip
CLOCK_RULES: tuple[Rule[Checkup], ...] = (
    Rule(_clock_skew, warning(
        "clock", "its clock is {seconds} s {side} this computer's",
        "turn NTP on where it is off: sudo timedatectl set-ntp true",
    )),
)  # fmt: skip
