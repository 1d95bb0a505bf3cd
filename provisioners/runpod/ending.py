"""The program by which a pod ends itself: run in the pod by any Python 3.6 or later, with nothing of ours beside it.

The key is the pod's own, which RunPod puts into its environment; it is never an argument of a program, which
every process there could read. Exit code 0: RunPod has ended the pod, or knows it no more.

A member of a cluster cannot go alone, and whether its key may end the cluster RunPod does not say: that is tried, then
to be terminated or at least stopped by itself.
"""

SOURCE = r"""
import json, os, shutil, subprocess, sys, urllib.error, urllib.request

BASE = sys.argv[1].rstrip("/")
CLUSTER = sys.argv[2] if len(sys.argv) > 2 else ""


def first(path):
    with open(path) as file:
        return file.read().strip()


def variables():  # those of the first process, else of the watchdog: an sshd that is first writes its title over them
    for pid in (lambda: "1", lambda: first("/run/gpuops/pid")):
        try:
            with open("/proc/%s/environ" % pid(), "rb") as file:
                lines = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        if found.get("RUNPOD_API_KEY") and found.get("RUNPOD_POD_ID"):
            return found
    return os.environ


VARIABLES = variables()
KEY = VARIABLES.get("RUNPOD_API_KEY", "")
POD = VARIABLES.get("RUNPOD_POD_ID", "")


def ask(method, path, body=None):
    headers = {"Authorization": "Bearer " + KEY, "User-Agent": "gpuops", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(BASE + path, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, ValueError) as error:
        print("gpuops:", type(error).__name__, error, file=sys.stderr)
        return ask_by_curl(method, path, data)


def ask_by_curl(method, path, data):  # a Python without CA certificates
    curl = shutil.which("curl")
    if not curl or any(char in KEY + path for char in "\"\\\n"):
        return 0, b""
    lines = ["url = \"%s\"" % (BASE + path), "request = " + method, "user-agent = gpuops", "silent", "max-time = 20",
             "header = \"Authorization: Bearer %s\"" % KEY, "write-out = \"\\n%{http_code}\""]
    if data:
        lines += ["header = \"Content-Type: application/json\"", "data = " + json.dumps(data.decode())]
    done = subprocess.run([curl, "-K", "-"], input="\n".join(lines).encode(), stdout=subprocess.PIPE)
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status) if status.isdigit() else 0, body


def gone(status):
    return 200 <= status < 300 or status == 404


def cluster():
    status, body = ask("GET", "/pods/" + POD)
    try:
        return str((json.loads(body.decode()).get("cluster") or {}).get("id") or "")
    except (ValueError, AttributeError):
        return ""


def end():
    if not KEY or not POD:
        print("gpuops: there is no RUNPOD_API_KEY and RUNPOD_POD_ID here", file=sys.stderr)
        return False
    status, body = ask("DELETE", "/pods/" + POD)
    if status == 409:
        whole = CLUSTER or cluster()
        if whole:
            status, body = ask("DELETE", "/clusters/" + whole)
        for action in ("terminate", "stop"):
            if not gone(status):
                status, body = ask("POST", "/pods/" + POD + "/action", {"action": action})
    if not gone(status):
        print("gpuops: RunPod answers", status, body[:200].decode(errors="replace"), file=sys.stderr)
    return gone(status)


sys.exit(0 if end() else 1)
"""
