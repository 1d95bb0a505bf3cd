"""The program by which a pod ends itself: run in the pod by any Python 3.6 or later, with nothing of ours beside it.

The key is the pod's own, which RunPod puts into its environment; it is never an argument of a program, which
every process there could read. What that key may do RunPod does not say, so all ways are tried, those first that were
seen to work (field reports: `action terminate` on v2, `podTerminate` of the older interface; DELETE was seen refused):

    POST /pods/ID/action terminate, DELETE /pods/ID, podTerminate,
    DELETE of its cluster (a member cannot go alone), POST /pods/ID/action stop (which ends the bill for its GPUs)

No answer is success, since 404 means "not accessible to the caller", too: while this runs, the pod is there. So it
never ends with exit code 0, one round takes less than ROUND_TIMEOUT_S, and whoever started it starts it again.
"""

ROUND_TIMEOUT_S = 120.0
"""How long one round may take when every way hangs."""

SOURCE = r"""
import json, os, shutil, subprocess, sys, threading, time, urllib.error, urllib.request

BASE = sys.argv[1].rstrip("/")
CLUSTER = sys.argv[2] if len(sys.argv) > 2 else ""
WAY_S = 15  # a way that takes longer is left alone, and the next one tried
SETTLE_S = 4  # from a yes to the end of this process


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


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):  # the key goes nowhere else
        return None


OPENER = urllib.request.build_opener(Stay)


def ask(method, url, body=None):
    headers = {"Authorization": "Bearer " + KEY, "User-Agent": "gpuops", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body else None
    try:
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        with OPENER.open(request, timeout=WAY_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except Exception as error:
        print("gpuops:", type(error).__name__, error, file=sys.stderr)
        return ask_by_curl(method, url, data)


def ask_by_curl(method, url, data):  # a Python without CA certificates
    curl = shutil.which("curl")
    if not curl or any(char in KEY + url for char in "\"\\\n"):
        return 0, b""
    lines = ["url = \"%s\"" % url, "request = " + method, "user-agent = gpuops", "silent", "max-time = %d" % WAY_S,
             "header = \"Authorization: Bearer %s\"" % KEY, "write-out = \"\\n%{http_code}\""]
    if data:
        lines += ["header = \"Content-Type: application/json\"", "data = " + json.dumps(data.decode())]
    done = subprocess.run([curl, "-q", "-K", "-"], input="\n".join(lines).encode(), stdout=subprocess.PIPE)
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status) if status.isdigit() else 0, body


def tried(*way):
    said = []
    thread = threading.Thread(target=lambda: said.append(ask(*way)), daemon=True)
    thread.start()
    thread.join(WAY_S)
    return said[0] if said else (0, b"")


def cluster():
    try:
        return str((json.loads(tried("GET", BASE + "/pods/" + POD)[1].decode()).get("cluster") or {}).get("id") or "")
    except (ValueError, AttributeError):
        return ""


def ways():
    pod = BASE + "/pods/" + POD
    yield "POST", pod + "/action", {"action": "terminate"}
    yield "DELETE", pod
    query = "mutation { podTerminate(input: {podId: %s}) }" % json.dumps(POD)
    yield "POST", BASE.rpartition("/")[0] + "/graphql", {"query": query}
    whole = CLUSTER or cluster()
    if whole:
        yield "DELETE", BASE + "/clusters/" + whole
    yield "POST", pod + "/action", {"action": "stop"}


if not KEY or not POD:
    sys.exit("gpuops: there is no RUNPOD_API_KEY and RUNPOD_POD_ID here")
for way in ways():
    status, body = tried(*way)
    print("gpuops:", way[0], way[1], "RunPod answers", status, body[:200].decode(errors="replace"), file=sys.stderr)
    if 200 <= status < 300:
        time.sleep(SETTLE_S)
sys.exit(1)
"""
