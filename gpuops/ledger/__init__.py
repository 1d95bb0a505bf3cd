"""The SQLite record of what was intended, and of what is.

store      the whole ledger, and changes of several tables at once; notices for the next command
clusters   records, reads and changes clusters
resources  records what was asked of a provider for a cluster, and what came of it
runs       records, reads and changes runs
database   transactions, and rows read as objects
rows       a cluster, a run and its facts as objects, and as columns
schema     the file: opened, made, checked, set aside where it is damaged
"""

FILE = "ledger.db"
"""In gpuops' own folder. Where it is missing nothing was ever brought up, and nothing need be opened to know that."""
