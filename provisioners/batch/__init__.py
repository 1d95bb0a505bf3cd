"""What batch systems have in common: a job that waits in a queue, a login node that submits it, and a home that all of
its machines share.

login_node   the login node: this machine, or one that is reached by SSH; what lies of ours in the home
jobs         a job and its nodes as resources
numbers      whole numbers in what a batch system prints
survey       what doctor tells of a cluster: a queue, the site's modules with torch
request      a request checked, and what a job is asked for with
provisioner  the contract, but for what is one batch system's own
"""
