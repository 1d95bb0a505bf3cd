"""AWS: EC2 machines with GPUs, spot or on demand. `provisioners` lists the modules."""

from provisioners.aws.provisioner import AwsProvisioner

__all__ = ["AwsProvisioner"]
