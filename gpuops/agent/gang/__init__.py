"""How the nodes of one run talk to each other without the client."""
