"""The project goes to its nodes: what is sent, what is held back, sending it; edits home, snapshots back.

files, ignore   which files there are, by git's rules
git             asking git, which runs nothing that a repository names
keynames        files of credentials, by their names
keyscan         what must not leave this computer: rules in keyrules.yml, and those of a library
send            what would be sent, and sending it
edits           what was edited on a node comes home
restore         an earlier run's snapshots go back
"""

from gpuops.push.send import Held, PushReport, Tree, allowed_places, push_many, scan, scan_data, summary

__all__ = ["Held", "PushReport", "Tree", "allowed_places", "push_many", "scan", "scan_data", "summary"]
