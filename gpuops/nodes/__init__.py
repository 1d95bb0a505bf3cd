"""A machine becomes a node, and is talked to.

bootstrap          the agent as one file: built, brought to a machine, started
host_key_handover  a rented machine gets a host key of its own, the agent, a watchdog
session            conversations with all nodes of a cluster, and what helps where some do not answer
has_ended          whether nodes and their machines have ended
gpu_shares         the nodes on one machine, virtual ones among them, and which of its GPUs each has
network            every node tries to reach every other before a launch
rendezvous         at which address the nodes of a run meet; pure
python             each node's Python, checked against its GPUs, and the set-up command
environment        what a project's Python environment must hold; pure but for the project's files
cuda               which build of torch runs on which GPU with which driver; published tables
"""
