"""RunPod: pods of its secure or community cloud, over its REST API v2. `provisioners` lists the modules."""

from provisioners.runpod.provisioner import RunpodProvisioner

__all__ = ["RunpodProvisioner"]
