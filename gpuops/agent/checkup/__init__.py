"""Mode `checkup`: the facts about a place that `gpuops doctor` judges.

checkup  the mode: probes in threads, one JSON document
host     machine, Pythons, disks, limits, and what administrators have set up
gpu      NVIDIA's GPUs, their driver and the CUDA compiler
site     files, variables and programs of the place that is examined
"""
