"""What travels between this computer and the nodes: code and data go out, logs and results come back.

project_files          which files a project sends, by the rules of git and of .gpuopsignore
notebook               a notebook's code cells as a script
secret_scan            which of them hold keys and stay here
workloads_and_data     the workloads that come with gpuops, and the data that `--data` names
data_sources           what an address in `--data` leads to: files, and the URL of each
fetch_data             nodes fetch them by themselves; their addresses, and their progress as one
fetch_stall            how long a node is believed that fetches and brings nothing
fetched_once           what one node has fetched goes to the others from there
scan                   what a folder sends, and what it holds back
upload                 compares a tree with what nodes have, and sends the difference
push_rounds            which node gets a push from here, and which through another
chain_links            which node reaches which, for a push that is passed on
push_chain             nodes of which each passes the push on to the next, fed once from here or by one of them
push_transports        rsync and the stream, which bring files to one node
uplink                 this computer's line: its measured rate, its limit, what an upload will take
push_record            what this computer has pushed to each node
pull_edits             files that were edited or made on a node come back into the project
restore_snapshots      an earlier run's snapshots go back onto every node (`--resume`)
run_folder             `runs/<run>/` on this computer
run_record             what `run.json` holds
log_mirror             copies logs while they grow
download               fetches and verifies results
download_plan          which file of which node travels, and in which order
merged_outputs         `out/`: all nodes' files merged into one tree, never over a person's work
merged_outputs_record  what `out/` holds, from which node
merged_outputs_journal the file of that record
unmatched_files        files on a node that no pattern names
sinks                  where results are kept besides this computer (`--sink`)
object_store           S3 requests of this computer: credentials, client, errors
bucket                 one sink in an object store: checked, opened to nodes by presigned URLs, read, cleaned up
archive                what nodes kept in a bucket, fetched, verified and unpacked
"""
