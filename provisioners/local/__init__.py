"""The embedded default: nodes that are processes and a folder on this computer.

provisioner  the contract for local nodes
processes    a node's processes seen from outside: starting them, whether they live, ending them by force
"""

from provisioners.local.provisioner import LocalProvisioner

__all__ = ["LocalProvisioner"]
