"""The SQLite record of what was intended, and of what is.

store   the ledger: every change is one transaction, on disk when its method returns
rows    a cluster, a run and its facts as objects, and as columns
schema  the file: opened, made, checked, set aside where it is damaged
"""
