"""How the nodes of one run talk to each other without the client.

link                   events and heartbeats between all nodes of a run
result_handover        results of a preempted machine go to a node that stays
events                 the events, as types
authenticated_channel  one authenticated connection between two nodes
"""
