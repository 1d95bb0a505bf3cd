"""Code and data go out, logs and results come back.

project, ignore   which files there are, by git's rules
git               asking git, which runs nothing that a repository names
keynames          files of credentials, by their names
secret_scan       what must not leave this computer: rules in keyrules.yml, and those of a library
upload            what would be sent, and sending it
edits             what was edited on a node comes home
restore           an earlier run's snapshots go back
run_folder        the folder of a run on this computer
download          mirroring logs, fetching and verifying files
archive           what a node has kept elsewhere, unpacked and verified
outputs           `out/`: several nodes' files in one tree, never over a person's work
inherit           what one node handed to another before it went
memory, download_plan, receive   what is remembered, what to do next, files on their way in
"""

from gpuops.sync.download import DEFAULT_OUTS, FetchReport, fetch, mirror
from gpuops.sync.run_folder import RunHome
from gpuops.sync.upload import HeldBack, PushReport, Tree, allowed_places, push_many, scan, scan_data, summary

__all__ = [
    "DEFAULT_OUTS",
    "FetchReport",
    "HeldBack",
    "PushReport",
    "RunHome",
    "Tree",
    "allowed_places",
    "fetch",
    "mirror",
    "push_many",
    "scan",
    "scan_data",
    "summary",
]
