"""Provisioners: one module per provider, all behind `gpuops.core.provider.Provisioner`."""
