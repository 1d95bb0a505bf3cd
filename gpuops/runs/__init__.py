"""One launch: prepare, start, follow, stop, finish, judge.

prepare        everything a run needs is brought to its nodes; its row in the ledger
script_check   what a script's text says before anything exists: not sent, a syntax error, starts its own ranks
start_decision where ranks would begin, from what each node has of earlier runs (pure)
earlier_files  what earlier runs left on the nodes: compared, put on all of them, or taken off (`--fresh`)
launch_spec    what each node is to start (pure)
launch         one spec to each agent
follow         logs home, byte by byte, until every node has reported
monitor        a run while it goes on: shown, fetched, remarked
graceful_stop  asking all nodes to stop, and waiting for it
finish         the one end of a run: collect, judge, write down
retries        a job whose machines were preempted goes on with others
receipt        what is printed when a run is over
report/        the page about a run
logs/          logs that are home, as lines on a terminal
results/       where results come from, and how long nodes keep them
outcome/       how a run ended: on each node, in one sentence, and what to do about it (pure)
"""
