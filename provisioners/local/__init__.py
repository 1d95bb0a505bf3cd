"""The embedded default: nodes that are processes and a folder on this computer. `provisioners` lists the modules."""

from provisioners.local.provisioner import LocalProvisioner

__all__ = ["LocalProvisioner"]
