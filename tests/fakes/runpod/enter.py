"""Becomes the first process of a container once its network is there: a line on stdin says so.

start.json beside root/: {"env": {}, "argv": [], "folder": "/", "user": 0}; what it prints goes to the file `log`.
"""

import json
import os
import signal
import sys

with open(sys.argv[1]) as document:
    start = json.load(document)
if not sys.stdin.readline():
    sys.exit(1)
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.chroot("root")
os.chdir(start["folder"] if os.path.isdir(start["folder"]) else "/")
os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
os.dup2(log, 1)
os.dup2(log, 2)
os.closerange(3, 256)
for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
    signal.signal(number, signal.SIG_DFL)  # Python has its own ways with these
if start["user"]:
    os.setgid(start["user"])
    os.setuid(start["user"])
try:
    os.execvpe(start["argv"][0], start["argv"], start["env"])
except OSError as error:
    os.write(2, f'exec: "{start["argv"][0]}": {error.strerror}\n'.encode())
    sys.exit(127)
