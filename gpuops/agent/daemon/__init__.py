"""What lives on a node as long as the node: the watchdog, the agent it keeps alive, `init` and `end`."""
