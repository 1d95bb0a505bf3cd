"""Programs on a node as byte streams: local processes, SSH, and the agent's requests over them."""
