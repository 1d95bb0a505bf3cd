"""`__main__` of an artefact that lies (see hostile.py beside it). Runs as a node's agent does: Python, no packages."""

import json
import os
import subprocess
import sys
import threading

REAL = "GPUOPS_TEST_REAL_AGENT"
PYZ = os.path.abspath(sys.argv[0])
BULK = ("send", "left", "receive", "restore")


def lies():
    """The test's two functions, read anew: it may change its mind."""
    found = {}
    try:
        with open(os.path.join(os.path.dirname(PYZ), "lies.py"), encoding="utf-8") as file:
            exec(compile(file.read(), "lies.py", "exec"), found)
    except FileNotFoundError:
        pass
    return found


def real(arguments, **streams):
    return subprocess.Popen([sys.executable, "-I", PYZ, *arguments], env={**os.environ, REAL: "1"}, **streams)


def node_of(arguments):
    folder = arguments[arguments.index("--node") + 1]
    return int(os.path.basename(folder)[1:])


def connect(arguments):
    """Everything the client says goes to the agent; what the agent says goes through `answer`."""
    node, asked = node_of(arguments), {}
    child = real(["connect", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    threading.Thread(target=forward, args=(child, asked), daemon=True).start()
    out = sys.stdout.buffer
    for line in child.stdout:
        try:
            message = json.loads(line)
        except ValueError:  # the magic line
            message = None
        if isinstance(message, dict) and message.get("id") in asked:
            verb, args = asked[message["id"]]
            changed = lies().get("answer", lambda *said: said[-1])(node, verb, args, message)
            line = as_bytes(changed)
        out.write(line)
        out.flush()
    return child.wait()


def as_bytes(changed):
    if changed is None:
        return b""
    if isinstance(changed, bytes):
        return changed
    many = changed if isinstance(changed, list) else [changed]
    return b"".join(json.dumps(one).encode() + b"\n" for one in many)


def forward(child, asked):
    for line in sys.stdin.buffer:
        try:
            message = json.loads(line)
            if "args" in message:
                asked[message["id"]] = (message["verb"], message["args"])
        except (ValueError, KeyError, TypeError):
            pass
        try:
            child.stdin.write(line)
            child.stdin.flush()
        except OSError:
            return
    child.stdin.close()


def program(mode, arguments):
    """`bulk` decides, by what came on stdin, whether the real program runs."""
    lie = lies().get("bulk")
    if lie is None:
        return real([mode, *arguments]).wait()
    stdin = sys.stdin.buffer.read()
    said = lie(node_of(arguments), mode, arguments, stdin)
    if said is None:
        child = real([mode, *arguments], stdin=subprocess.PIPE)
        child.communicate(stdin)
        return child.returncode
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()
    return 0


def main(argv):
    if REAL in os.environ or len(argv) < 2 or argv[1] not in ("connect", *BULK):
        os.environ.pop(REAL, None)
        import real_main

        return real_main.main(argv)
    if argv[1] == "connect":
        return connect(argv[2:])
    return program(argv[1], argv[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv))
