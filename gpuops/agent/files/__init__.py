"""Files of a node: pushed trees, outputs of runs, and their transfer.

tree        verbs `plan`, `commit`, `edits`: a push, in steps that may be interrupted at any byte
survey      what a push would do to a tree as it is now
file_state  the decision for one path
folder      one tree on disk, never outside it
outputs     what a run made: patterns, sizes, checksums
streams     tar streams that a node sends; an earlier run's files put back
transfer    the modes `receive`, `send`, `restore`, `left`
local_disk  a local disk for large trees and environments
"""
