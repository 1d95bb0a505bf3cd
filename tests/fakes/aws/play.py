"""Plays user data inside an instance, in the stages and the order in which cloud-init does: play.py init|config|final

init runs before anything else of the system, also before sysinit.target: bootcmd at every boot; files, users and keys
at the first. config and final come when sshd is there already; runcmd is final's.

play.json: {"config": the document, "user": the image's user, "mishap": ""}. A command that fails is told and the next
one runs, as with cloud-init; `errors` has a line of each.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ERRORS = HERE / "errors"
INSTANCE = Path("/var/lib/cloud/instance")
SSH = Path("/etc/ssh")


def main(stage: str) -> int:
    told = json.loads((HERE / "play.json").read_text())
    config, user, mishap = told["config"], told["user"], told["mishap"]
    print(f"cloud-init: stage {stage}, {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())}", flush=True)
    if stage == "init":
        return init(config, user, mishap)
    if stage == "config" and mishap == "hangs":
        hang()
    if stage == "final":
        final(config)
    return 0


def init(config: dict[str, Any], user: str, mishap: str) -> int:
    script("bootcmd", config.get("bootcmd", []))
    if mishap == "fails":
        print("cloud-init: failed, and nothing after this is done", flush=True)
        return 1
    if mishap == "hangs early":
        hang()
    if not first("init"):
        return 0
    write_files(config, deferred=False)
    make_users(config, user)
    set_host_keys(config)
    set_logins(config, user)
    (SSH / "sshd_config.d").mkdir(exist_ok=True)
    allowed = "yes" if config.get("ssh_pwauth") else "no"
    (SSH / "sshd_config.d/50-cloud-init.conf").write_text(f"PasswordAuthentication {allowed}\n")
    return 0


def final(config: dict[str, Any]) -> None:
    if not first("final"):
        return
    write_files(config, deferred=True)
    script("runcmd", config.get("runcmd", []))
    keys = [path.read_text().strip() for path in sorted(SSH.glob("ssh_host_*_key.pub"))]
    print("\n".join(["-----BEGIN SSH HOST KEY KEYS-----", *keys, "-----END SSH HOST KEY KEYS-----"]))
    (INSTANCE / "boot-finished").touch()


def hang() -> None:
    print("cloud-init: waiting", flush=True)
    while True:
        time.sleep(60)


def first(stage: str) -> bool:
    """Whether this is the instance's first boot to come this far."""
    INSTANCE.mkdir(parents=True, exist_ok=True)
    done = INSTANCE / f"done.{stage}"
    if done.exists():
        return False
    done.touch()
    return True


# ---- commands and files


def script(name: str, commands: list[str | list[str]]) -> None:
    """One shell script of all commands: one that fails does not keep the next from running."""
    if not commands:
        return
    file = HERE / name
    lines = [one if isinstance(one, str) else shlex.join(one) for one in commands]
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o700)
    status = subprocess.run([file], stdin=subprocess.DEVNULL).returncode
    if status:
        complain(f"{name} ended with {status}")


def complain(line: str) -> None:
    print(f"cloud-init: {line}", flush=True)
    with ERRORS.open("a") as errors:
        errors.write(f"{line}\n")


def write_files(config: dict[str, Any], deferred: bool) -> None:
    for one in config.get("write_files", []):
        if bool(one.get("defer")) != deferred:
            continue
        path = Path(one["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if one.get("append") else "w") as file:
            file.write(one.get("content", ""))
        path.chmod(int(str(one.get("permissions", "0644")), 8))
        owner, _, group = one.get("owner", "root:root").partition(":")
        try:
            shutil.chown(path, owner, group or None)
        except LookupError as error:
            complain(f"write_files: {path}: {error}")  # nobody has that name yet


# ---- users and keys


def make_users(config: dict[str, Any], user: str) -> None:
    """Without a list there is the image's own user; `default` in a list is that one."""
    listed = config.get("users", ["default"])
    for one in ({"name": user} if one == "default" else one for one in listed):
        default = one["name"] == user
        groups = one.get("groups", "sudo" if default else "")
        groups = ",".join(groups) if isinstance(groups, list) else groups
        line = ["useradd", "-m", "-s", one.get("shell", "/bin/bash"), "-p", "*"]  # sshd lets nobody into a locked one
        done = subprocess.run([*line, *(["-G", groups] if groups else []), one["name"]])
        if done.returncode:
            complain(f"useradd {one['name']} ended with {done.returncode}")
            continue
        rules = one.get("sudo", "ALL=(ALL) NOPASSWD:ALL" if default else None)
        for rule in [rules] if isinstance(rules, str) else rules or []:
            with open("/etc/sudoers.d/90-cloud-init-users", "a") as sudoers:
                sudoers.write(f"{one['name']} {rule}\n")
        add_keys(one["name"], one.get("ssh_authorized_keys", []))


def set_host_keys(config: dict[str, Any]) -> None:
    """With `ssh_keys` there are these and no other."""
    if config.get("ssh_deletekeys", True):
        for path in SSH.glob("ssh_host_*key*"):
            path.unlink()
    given = config.get("ssh_keys", {})
    for name, text in given.items():
        kind, _, half = name.partition("_")
        path = SSH / f"ssh_host_{kind}_key{'.pub' if half == 'public' else ''}"
        path.write_text(text if text.endswith("\n") else f"{text}\n")
        path.chmod(0o644 if half == "public" else 0o600)
    if not given:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", SSH / "ssh_host_ed25519_key"], check=True)


def set_logins(config: dict[str, Any], user: str) -> None:
    keys = config.get("ssh_authorized_keys", [])
    if user in [one.pw_name for one in pwd.getpwall()]:
        add_keys(user, keys)
    if config.get("disable_root", True):
        told = f"echo 'This is not for root: log in as {user}.'; sleep 1; exit 142"
        keys = [f'no-port-forwarding,no-agent-forwarding,no-X11-forwarding,command="{told}" {key}' for key in keys]
    add_keys("root", keys)


def add_keys(user: str, keys: list[str]) -> None:
    if not keys:
        return
    known = pwd.getpwnam(user)
    folder = Path(known.pw_dir) / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "authorized_keys").open("a") as file:
        file.writelines(f"{key.strip()}\n" for key in keys)
    (folder / "authorized_keys").chmod(0o600)
    for path in (folder, folder / "authorized_keys"):
        os.chown(path, known.pw_uid, known.pw_gid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
