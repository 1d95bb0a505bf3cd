"""How a client talks to the agent: the socket, the way to it, the first answer."""
