"""Entrance of the program on a node: `python3 -IS <artefact> MODE ...`.

Python 2.7 and 3.6 must be able to read this file as far as the version check.
"""

import sys

MODES = {
    "init": "daemon.init_command",
    "hold": "daemon.hold_command",
    "contain": "daemon.contain_command",
    "watchdog": "daemon.watchdog",
    "agent": "daemon.main",
    "connect": "rpc.connect",
    "receive": "files.transfer_modes",
    "rsync-receive": "files.transfer_modes",
    "relay": "peers.push_relay",
    "relay-source": "peers.push_relay",
    "send": "files.transfer_modes",
    "restore": "files.transfer_modes",
    "left": "files.transfer_modes",
    "fetch": "fetch.mode",
    "end": "daemon.end_command",
    "nodes": "daemon.end_command",
    "rank": "run.rank",
    "checkup": "checkup.checkup",
    "forward": "network.port_forward",
    "port": "network.port_forward",
}
"""Mode -> module; its `main(mode, arguments)` gives the exit code."""


def refuse(kind, say, hint, code):
    # type: (str, str, str, int) -> int
    """Print the one line that a client reads on stderr."""
    import json

    sys.stderr.write(json.dumps({"error": {"kind": kind, "say": say, "hint": hint, "data": {}}}) + "\n")
    return code


def main(argv):
    # type: (list[str]) -> int
    """Exit codes: 0, 1 with an error line, 3 for a Python that is too old."""
    if sys.version_info < (3, 8):  # noqa: UP036 - the artefact meets older ones
        found = ".".join(str(part) for part in sys.version_info[:3])
        return refuse("old-python", "the agent needs Python 3.8, this is " + found, "name a newer one with --python", 3)
    if len(argv) < 2 or argv[1] not in MODES:
        modes = ", ".join(sorted(MODES))
        return refuse("usage", "the agent needs a mode: " + modes, "it is started by gpuops, not by hand", 1)
    import gc
    import importlib
    import os

    from gpuops.agent import compiled_code

    gc.set_threshold(50000)  # a list of files stays: to look for garbage in it takes longer than to read it
    sys.argv[0] = os.path.abspath(sys.argv[0])
    compiled_code.use(sys.argv[0], makes=argv[1] in ("init", "hold", "contain"))
    from gpuops.agent.node import Refusal

    try:
        return int(importlib.import_module("gpuops.agent." + MODES[argv[1]]).main(argv[1], argv[2:]))
    except Refusal as refusal:
        return refuse(refusal.kind, refusal.say, refusal.hint, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
