"""Hosts of the user's own, reached by SSH: what is made there is a folder. `provisioners` lists the modules."""

from provisioners.ssh.provisioner import SshProvisioner

__all__ = ["SshProvisioner"]
