"""A machine's local disk, if its provider mounts one: for data and environments, which can be sent or made again.

AWS's Deep Learning AMI joins the instance store's NVMe disks to one at /opt/dlami/nvme, which every user may write
(AWS, "DLAMI: instance store"). It is large and fast, paid for with the machine, and lost with it.

    <disk>/gpuops/env  <disk>/gpuops/data      targets of the links `<root>/env` and `<root>/data`
    <disk>/gpuops/<cluster>/n<i>/data…         trees of `--data`, and `incoming/` for them; the folders are those
                                               below the root, so that links between trees work here, too

What must survive (settings, leases, runs and their results) stays on the root's disk.
"""

from __future__ import annotations

import os
import stat

from gpuops.agent.files.folder import free_bytes
from gpuops.agent.node import Node, log

FOLDER = "gpuops"
SHARED = ("env", "data")


def set_up(node: Node, disk: str) -> str | None:
    """Make our folder on the disk mounted at `disk`, and the links to it. Returns the folder.

    None, and no links, where there is no such disk, it cannot be written, or it has less room than the root's.
    """
    folder = os.path.join(disk, FOLDER)
    try:
        if not is_roomier(disk, node.root):
            return None
        os.makedirs(folder, mode=0o700, exist_ok=True)
        seen = os.lstat(folder)
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():
            return None  # every user may write to the disk: this folder is another user's
        os.chmod(folder, 0o700)
        for name in SHARED:
            if not os.path.lexists(os.path.join(node.root, name)):
                os.makedirs(os.path.join(folder, name), mode=0o700, exist_ok=True)
                os.symlink(os.path.join(folder, name), os.path.join(node.root, name))
    except OSError as error:
        log(f"{disk} is not used: {error}")
        return None
    return folder


def is_roomier(disk: str, root: str) -> bool:
    """Whether `disk` is a folder on another file system than the root's, with more room for this user."""
    if not os.path.isdir(disk):
        return False
    (device, room), (root_device, root_room) = space(disk), space(root)
    return device != root_device and room > root_room


def space(path: str) -> tuple[int, int]:
    """The file system's number, and the bytes that this user may still write to it."""
    return os.stat(path).st_dev, free_bytes(path) or 0


def describe(node: Node) -> dict[str, object] | None:
    """`{path, free}` (bytes) of the local disk with data and environments; None where the root's disk has them."""
    folder = node.scratch()
    return {"path": os.path.dirname(folder), "free": free_bytes(folder) or 0} if folder else None
