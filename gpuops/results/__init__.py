"""What a run made comes home: its logs byte for byte, its files verified and merged into one tree.

home      the folder of a run on this computer
collect   mirroring logs, fetching and verifying files
archive   what a node has kept elsewhere, unpacked and verified
folder    `out/`: several nodes' files in one tree, never over a person's work
inherit   what one node handed to another before it went
memory, plan, receive   what is remembered, what to do next, files on their way in
"""

from gpuops.results.collect import DEFAULT_OUTS, FetchReport, fetch, mirror
from gpuops.results.home import RunHome

__all__ = ["DEFAULT_OUTS", "FetchReport", "RunHome", "fetch", "mirror"]
