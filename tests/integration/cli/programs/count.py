"""Counts aloud: `count.py SIDE [MOOD…]`. Every line goes to stdout and then to a file beside it.

Moods: `deaf` ignores SIGTERM, SIGINT and SIGUSR1; `saving` writes a snapshot at SIGUSR1, and `leaving`
ends well after that. Else it ends well when `SIDE/enough` exists. It leaves children behind that nobody
is to find by name, parent or environment.
"""

import ctypes
import os
import signal
import sys
import time

SIDE = sys.argv[1]
MOODS = sys.argv[2:]
WHO = os.environ.get("RANK") or os.environ.get("GPUOPS_NODE_RANK") or "0"
PR_SET_NAME = 15


def start_time(pid):
    with open(f"/proc/{pid}/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/stat") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def leave_child(name, environment):
    """A grandchild with a session of its own and no parent of ours, deaf, under another name."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(sign, signal.SIG_IGN)
    with open(f"{SIDE}/{WHO}-{name}.draft", "w") as file:
        file.write(f"{os.getpid()} {start_time(os.getpid())}")
    os.rename(file.name, f"{SIDE}/{WHO}-{name}.child")
    if environment is None:
        os.execve("/bin/sh", ["[kworker/0:1]", "-c", "exec 2>/dev/null; while :; do sleep 1; done"], {})
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"kworker/0:2", 0, 0, 0)
    while True:
        time.sleep(1)


def save(*_):
    with open("snapshot.draft", "w") as file:
        file.write(f"saved by {WHO}\n")
    os.replace("snapshot.draft", f"snapshot-{WHO}.pt")
    if "leaving" in MOODS:
        os._exit(0)


if "deaf" in MOODS:
    for deaf in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(deaf, signal.SIG_IGN)
if "saving" in MOODS:
    signal.signal(signal.SIGUSR1, save)
leave_child("bare", None)
leave_child("renamed", os.environ)
with open(f"{SIDE}/{WHO}.txt", "ab", 0) as beside:
    number = 0
    while not os.path.exists(f"{SIDE}/enough"):
        text = f"{WHO} counts {number} with some bytes behind it: {'.' * (number % 50)}\n".encode()
        os.write(1, text)
        beside.write(text)
        number += 1
        time.sleep(0.01)
