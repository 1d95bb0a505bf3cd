"""PBS clusters: one job is a cluster, submitted on a login node.

options      the provider's own flags, and a request checked
commands     every command of PBS's that is run, and what it prints
site         what the cluster has, and what a request may have of it
survey       what doctor tells of it
provisioner  the contract
"""

from provisioners.pbs.provisioner import PbsProvisioner

__all__ = ["PbsProvisioner"]
