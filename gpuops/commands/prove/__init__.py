"""The contract of a provisioner, proven: scenarios that act on a provider and report what they saw.

They are used twice: `gpuops.testing` makes tests of them for authors of provisioners, and `gpuops prove PROVIDER` runs
them against the real provider and writes a record.

- `prove`: cost, confirmation, the run of all scenarios, the end of everything that they made.
- `scenarios`: the table of scenarios, whose code is in `free_scenarios`, `create_scenarios` and `failure_scenarios`.
- `sandbox`: the provisioner under test, its clusters and what they cost.
- `shared_clusters`: clusters that several scenarios act on.
- `fault_injection`: outcomes, and journals and provisioners that lose answers or kill the process.
- `lost_answers`: what only tests do, where the provider is a fake: an endpoint before it that loses answers or fails.
- `fake_server`: the HTTP server of a fake provider, for authors of one (`gpuops.testing`); ours stand on it.
- `killed_process`: the process that one scenario starts and kills.
- `proof_record`: the JSON document, and its row in docs/verified.md.
"""
