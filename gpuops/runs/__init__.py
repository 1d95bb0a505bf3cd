"""One launch: prepare, start, follow, stop, finish, judge.

prepare          everything a run needs is brought to its nodes; its row in the ledger
launch           one spec to each agent
spec             what each node is to start (pure)
follow           logs home, byte by byte, until every node has reported
monitor          a run while it goes on: shown, fetched, remarked
log_lines        bytes of many streams as lines, each saying whose it is (pure)
log_view         lines of the logs that are home, in the order in which they were written
address_renewal  upload addresses of a bucket, renewed while a run is followed
stop             asking all nodes to stop, and waiting for it
report           how a run ended on a node, typed
finish           the one end of a run: collect, judge, write down
collect          where results come from: agents, disks of ended nodes, bucket
salvage          what a node's disk still has when no agent answers
judgement        which results are home, and whether the machines may be destroyed (pure)
verdict          one sentence, one thing to do, one exit code (pure)
diagnosis        which process died first, and of what (pure)
remedies         what helps against a program's last words (pure)
receipt          what is printed when a run is over
retries          a job whose machines were preempted goes on with others
retention        how long nodes hold results, and what the user agrees to
"""
