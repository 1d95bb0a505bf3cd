"""Create machines, wait for them, tear them down, find orphans.

selection      which cluster a command means: a pure decision
available_offers  the offers for a request, or why there are none
creation       offers are tried until machines exist and answer; what was half made is undone
market_creation  the same at whichever of several providers has the machines
provider_clock whose clock says when a machine ends that never gets ready
readiness      one loop with one deadline until created machines are nodes that answer
virtual_nodes  several nodes on one machine
teardown       destroy and list repeatedly, until nothing of a cluster costs money
teardown_errors  what could not be ended, and what to type next
leftovers      costless resources of a cluster that is gone are destroyed later
orphans        what providers list with our tag and the ledger does not know
other_owners   what other homes' gpuops have in the account
home_files     what this computer's folder says of clusters beside the ledger
adoption       a cluster that the ledger lost becomes rows again, from what `run_files_on_nodes` reads on its nodes
"""
