"""One run on this node, from its start to its result.

run_verbs                the verbs about runs; at most one run per node
supervisor               the life of one run: start, watch, stop, end
command_and_environment  which command line is started, in which environment
rank                     mode `rank`: between torchrun and the script
result                   how a run ended: the decision, and the document of result.json
stopping                 how a run is stopped: steps, and which request counts
joined_ranks             which ranks joined the rendezvous
preemption_notices       the provider's notices that it takes the machine back
snapshot_request         asking a run to save a snapshot and go on
samples                  verb `sample`: what the node uses, while a client looks
log_tail                 verb `tail`: the run's streams as bytes
"""
