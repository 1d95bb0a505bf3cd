"""What the machine and a run's processes use, for `gpuops top` and for a run's report.

machine  processor, memory, network, disks: counters of the kernel, and rates between two looks
gpus     GPUs, by an nvidia-smi that prints as long as somebody looks
sampler  one sample of all that, with the ranks of the live run
record   a run's `usage.jsonl`
"""
