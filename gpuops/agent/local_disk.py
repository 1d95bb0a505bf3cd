"""A machine's local disk, where its provider mounts one: for data and environments, which can be sent or made again.

AWS's Deep Learning AMI joins the instance store's NVMe disks to one at /opt/dlami/nvme, which every user may write
(AWS, "DLAMI: instance store"). It is large and fast, paid for with the machine, and gone with it.

    <disk>/gpuops/env  <disk>/gpuops/data      what `<root>/env` and `<root>/data` then lead to
    <disk>/gpuops/<cluster>/n<i>/data…         trees of `--data`, and `incoming/` for them; as below the root,
                                               so that links from one tree to another hold there, too

What must survive (settings, leases, runs and their results) stays on the root's disk.
"""

from __future__ import annotations

import os
import stat

from gpuops.agent.files.folder import free_bytes
from gpuops.agent.node import Node, log

FOLDER = "gpuops"
SHARED = ("env", "data")


def lay(node: Node, disk: str) -> str | None:
    """Our folder on the disk that is mounted at `disk`, with the links that lead there.

    None where there is no such disk, it cannot be written, or it has less room than the root's: nothing changes then.
    """
    folder = os.path.join(disk, FOLDER)
    try:
        if not is_roomier(disk, node.root):
            return None
        os.makedirs(folder, mode=0o700, exist_ok=True)
        seen = os.lstat(folder)
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():
            return None  # every user may write there: this one is somebody else's
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
    (one, room), (other, room_of_root) = space(disk), space(root)
    return one != other and room > room_of_root


def space(path: str) -> tuple[int, int]:
    """The number of the file system, and the bytes that this user may still write there."""
    return os.stat(path).st_dev, free_bytes(path) or 0


def told(node: Node) -> dict[str, object] | None:
    """Where data and environments lie, and the bytes that are free there; None where that is the root's disk."""
    folder = node.scratch()
    return {"path": os.path.dirname(folder), "free": free_bytes(folder) or 0} if folder else None
