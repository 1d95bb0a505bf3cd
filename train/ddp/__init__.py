"""What every data-parallel training program needs and few have; the programs beside this folder stand on it.

world       the processes that train together: joining, collectives, stopping, leaving
options     the arguments that all programs share
randomness  every generator of random numbers at once: seeded, kept, put back
sampler     who sees which sample in which step, from any point of an epoch, in any world
downloads   data sets from where they are published, once per machine
loader      batches of them on the device
snapshots   files to resume from
trainer     the loop
watching    TensorBoard, the profiler

Copy the folder into your own project: it needs torch and numpy, and nothing of gpuops.
"""
