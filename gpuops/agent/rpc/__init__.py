"""Answers a client's requests.

server   agent.sock: verbs, one thread for each request
connect  mode `connect`: joins a client's stdio to agent.sock; how this node's programs ask their agent
hello    verbs `hello` and `ping`: what this node is, has and does
"""
