"""One module per command that needs clusters and runs; commands whose work lies in one lower room have none.

- `plan`: what one `run` or `train` will do, decided once as a value.
- `dry_run`: what a plan would create, send and execute, for `--dry-run`.
- `train`: carries a plan out, from the cluster to the receipt.
- `end_after_run`: ends the cluster that a run brought up, or hands it to the guard.
- `export/`: the launch as a script for a scheduler.
- `logs`: a run's output, from its files here and from its nodes.
- `stop`: stops one run; also chooses the run that a command means.
- `status`: live clusters by the ledger, resources by the providers.
- `top`: what every node does now; `top_table` draws it.
- `report`: the page about a run, made anew. `tensorboard`: TensorBoard on what is home of runs.
- `push`, `pull`: the project to the nodes; results and edits back.
- `ssh`: a shell or a forwarded port on a node.
- `down`: ends clusters after their results were downloaded.
- `doctor/`: checks of this computer, providers and nodes.
- `prove/`: the contract of a provisioner, run against the real provider.
"""
