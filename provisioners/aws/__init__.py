"""AWS: EC2 machines with GPUs, spot or on demand."""

from provisioners.aws.provisioner import AwsProvisioner

__all__ = ["AwsProvisioner"]
