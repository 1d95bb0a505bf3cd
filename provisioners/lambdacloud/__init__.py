"""Lambda Cloud (`gpuops up lambda`): on-demand machines over its API v1. `provisioners` lists the modules."""

from provisioners.lambdacloud.provisioner import LambdaProvisioner

__all__ = ["LambdaProvisioner"]
