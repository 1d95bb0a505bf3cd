"""Files of a node: pushed trees, outputs of runs, and their transfer.

push_steps       verbs `plan`, `commit`, `edits`, mode `receive`: a push, in steps that may be interrupted at any byte
incoming         what a push has brought so far
rsync_receiver   mode `rsync-receive`: rsync brings it
push_comparison  what a push would do to a tree as it is now
contents_here    contents of a push that lie on the node already, under another name or in another tree
push_decision    the decision for one path
folder           one tree on disk, never outside it
output_files     what a run made: patterns, sizes, checksums
inventory        all files of a tree at a run's start, which the end is compared with
earlier_outputs  verb `made`, mode `restore`: files of earlier runs, that a further one may go on from
tar_streams      mode `send`: files as a tar stream
transfer_modes   starts the modes `receive`, `rsync-receive`, `send`, `restore`, `left`
local_disk       a local disk for large trees and environments
"""
