"""The remote shell of an rsync that gpuops has started (`-e`): hands rsync's two ends and its command line to that
gpuops, and ends as it says. Run as a program, with nothing but the standard library."""

import array
import os
import socket
import sys

OWNER = "GPUOPS_RSYNC_OWNER"
"""Variable with the number of the socket to gpuops, which rsync has inherited."""


def main(argv: list[str]) -> int:
    """`argv`: this program, the name of a host, and the command that rsync wants to run there."""
    with socket.socket(fileno=int(os.environ[OWNER])) as owner:
        ends = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1]))]
        owner.sendmsg(["\0".join(argv[2:]).encode(errors="surrogateescape")], ends)
        os.close(0)
        os.close(1)  # rsync is to see the end of what gpuops writes to it
        return (owner.recv(1) or b"\xff")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
