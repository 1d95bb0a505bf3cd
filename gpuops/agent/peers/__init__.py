"""How nodes talk to each other without the client: those of one run, and those that pass a push on.

link                   events and heartbeats between all nodes of a run
result_handover        results of a preempted machine go to a node that stays
events                 the events, as types
authenticated_channel  one authenticated connection between two nodes
push_relay             mode `relay`: a push is staged here, and passed on to the next node while it comes
relay_conversation     what the client says to it, and what the client's sums prove
stream_onward          a stream to the next node, which is left behind where it does not take it
encrypted_link         one encrypted connection between two nodes that hold a certificate made for it
"""
