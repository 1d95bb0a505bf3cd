"""Provisioners: one module per provider, all behind `provisioners.base.Provisioner`."""
