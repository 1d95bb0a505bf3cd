"""Hosts of the user's own, reached by SSH: nothing is rented, and what is made there is a folder.

provisioner  the contract for such hosts
placement    logging in to each host once, and which node is on which host
hosts        the file of hosts that something of ours may be on
"""

from provisioners.ssh.provisioner import SshProvisioner

__all__ = ["SshProvisioner"]
