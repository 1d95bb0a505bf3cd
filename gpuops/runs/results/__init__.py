"""Where a run's results come from, and how long its nodes keep them.

collect      from agents, from disks of ended nodes, from a bucket
dead_agents  what a node's disk still has when no agent answers
sink_wait    waiting for what nodes still upload to the sink
retention    how long nodes hold results, and what the user agrees to
url_renewal  presigned upload URLs, renewed while a run is followed
"""
