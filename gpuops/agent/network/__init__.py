"""Addresses and ports of this node, and whether other nodes can be reached.

interfaces                   verbs `route`, `port`, `addresses`: interfaces and addresses, from the kernel
probe                        verbs `listen`, `release`, `reach`: every node tries every other one
unauthenticated_connections  connections that have not proven the nodes' secret
port_forward                 modes `forward`, `port`: a port of a job's machine, open on the login node
"""
