"""Create machines, wait for them, tear them down, find orphans."""
