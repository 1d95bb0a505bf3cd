"""Vast.ai: containers on machines of many owners, over its REST API."""

from provisioners.vast.provisioner import VastProvisioner

__all__ = ["VastProvisioner"]
