"""The Pythons of this node: finding one, making one, preparing it for a project.

setup         verbs `python` and `setup`
environments  environments with torch, made by pip or uv; long commands that report while they run
interpreters  one Python: its version, and the torch it would import
"""
