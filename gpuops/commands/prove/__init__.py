"""The contract of a provisioner, proven: scenarios that act on a provider and say what they saw.

Written once and used twice: `gpuops.testing` makes tests of them for whoever writes a provisioner,
`gpuops prove PROVIDER` runs them against the real thing and writes down what came of it.
"""
