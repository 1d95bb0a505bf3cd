"""The background process that finishes what a dead command left, one for each cluster.

services         what a command's Context is built with: ledger, provisioners, guard
start            starts a cluster's guard unless one works
daemon           the guard itself: it supervises its attempts, which are child processes, and keeps their deadlines
schedule         when an attempt is made, ended, made again: pure decisions
lease_time       by which clock a lease is judged: none of this computer's decides alone
lease_check      whether a cluster has outlived its lease: where clocks cannot tell, others are asked
guard_heartbeat  proof that a guard works, with which keys, and what its provider refused
cleanup          one attempt: undo, tear down, follow a run to its end, bring results home
"""
