"""Create machines, wait for them, tear them down, find orphans.

select         which cluster a command means: a pure decision
up             offers are tried until machines exist and answer; what was half made is undone
wait           from a machine that was created to a node that answers: one loop, one deadline
virtual_nodes  several nodes on one machine
teardown       destroy, look, until nothing of a cluster costs money
orphans        what providers list with our mark and the ledger does not know
recovery       a cluster that the ledger lost becomes rows again, from what `node_traces` reads on its nodes
"""
