#!/usr/bin/env python3
"""What stands in for PBS on a lab's hosts: its commands by their names, whose jobs are real processes on other hosts,
and as unkind as PBS is without its cgroups hook. State lies in the home that all hosts share."""

import contextlib
import fcntl
import getopt
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

FOLDER = pathlib.Path("/root/.pbs")
NODES = ("c1", "c2")
KILL_DELAY_S = 5
SELF = "/opt/pbs/bin/pbs_stand_in"


def ssh(host, *words, **popen):
    return subprocess.Popen(
        ["ssh", "-n", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={FOLDER}/known_hosts", host, shlex.join(words)],
        **popen,
    )


def jobs():
    numbers = sorted((FOLDER / "jobs").iterdir(), key=lambda path: int(path.name))
    return [json.loads((path / "job.json").read_text()) for path in numbers]


def folder(number):
    return FOLDER / "jobs" / str(number)


def job_of(number):
    return json.loads((folder(number) / "job.json").read_text())


def keep(job):
    new = folder(job["number"]) / "job.new"
    new.write_text(json.dumps(job))
    new.rename(new.with_name("job.json"))


def schedule():
    """What has ended is over, and what waits gets free nodes."""
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = jobs()
        for job in known:
            rc = folder(job["number"]) / "rc"
            if job["state"] == "R" and rc.exists():
                job.update(state="F", rc=int(rc.read_text()))
                keep(job)
        busy = {host for job in known if job["state"] == "R" for host in job["hosts"]}
        for job in known:
            free = [host for host in NODES if host not in busy]
            if job["state"] != "Q" or job["comment"].startswith("Can Never Run"):
                continue
            if len(free) < job["nodes"]:
                job["comment"] = "Not Running: Insufficient amount of resource: ngpus"
                keep(job)
                continue
            job.update(state="R", hosts=free[: job["nodes"]], comment="", begun=time.time())
            busy.update(job["hosts"])
            keep(job)
            begin = ssh(job["hosts"][0], "sh", "-c", f"setsid {SELF} mom {job['number']} >/dev/null 2>&1 &")
            begin.wait()


def qsub(arguments):
    given, _ = getopt.getopt(arguments, "N:r:m:S:j:o:l:q:A:")
    asked = dict(value.split("=", 1) for name, value in given if name == "-l")
    nodes, _, rest = asked["select"].partition(":")
    parts = dict(part.split("=") for part in rest.split(":"))
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = len(jobs()) + 1
        folder(number).mkdir()
        (folder(number) / "script").write_text(sys.stdin.read())
        never = parts.get("host", NODES[0]) not in NODES or int(nodes) > len(NODES)
        job = {"number": number, "nodes": int(nodes), "state": "Q", "name": dict(given)["-N"],
               "comment": "Can Never Run: Insufficient amount of resource: host" if never else "",
               "output": dict(given)["-o"], "parts": parts, "walltime": asked["walltime"]}  # fmt: skip
        keep(job)
    print(f"{number}.pbs")
    schedule()


def record(number, process):
    """A session that a signal to the job reaches; what leaves it by setsid, none does."""
    with (folder(number) / "tasks").open("a") as file:
        file.write(f"{os.uname().nodename} {process.pid}\n")


def start(number, argv, **more):
    environ = {"HOME": "/root", "USER": "root", "PATH": "/usr/bin:/bin", "PBS_JOBID": f"{number}.pbs", **more}
    with (folder(number) / "spool").open("ab") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/root", env=environ,
                                   start_new_session=True)  # fmt: skip
    record(number, process)
    return process


def mom(arguments):
    """On a job's first node: its script, with whose end all its sessions end; it is ended when its time is over."""
    number = arguments[0]
    script = start(number, ["/bin/sh", str(folder(number) / "script")], PBS_NODEFILE="/nowhere")
    while script.poll() is None and time.time() < ends_at(job_of(number)):
        time.sleep(0.2)
    is_late = script.poll() is None
    if is_late:
        end_beside(number)
    code = script.wait()
    send(number, "KILL")
    with contextlib.suppress(OSError):
        shutil.copyfile(folder(number) / "spool", job_of(number)["output"])  # without its mode: that may be /dev/null
    (folder(number) / "rc").write_text("-29" if is_late else str(256 - code if code < 0 else code))


def ends_at(job):
    hours, minutes, seconds = map(int, job["walltime"].split(":"))
    return job["begun"] + hours * 3600 + minutes * 60 + seconds


def send(number, sign):
    for line in (folder(number) / "tasks").read_text().splitlines():
        host, session = line.split()
        ssh(host, "pkill", f"-{sign}", "-s", session).wait()


def pbsdsh(arguments):
    signal.signal(signal.SIGTERM, lambda *_: None)
    number = os.environ["PBS_JOBID"].split(".")[0]
    host = job_of(number)["hosts"][int(arguments[1])]
    code = ssh(host, SELF, "task", number, *arguments[3:], start_new_session=True).wait()
    if code:
        sys.stderr.write(f"pbsdsh: task 0x00000001 exit status {code}\n")


def task(arguments):
    return start(arguments[0], arguments[1:]).wait()


def qdel(arguments):
    number = arguments[0].split(".")[0]
    schedule()
    job = job_of(number)
    if job["state"] == "Q":
        keep({**job, "state": "F"})
    elif job["state"] == "R":
        end_beside(number)
    else:
        sys.stderr.write(f"qdel: Job has finished {arguments[0]}\n")
        return 35
    return 0


def qalter(arguments):
    """`-l walltime=0:00:09 JOB`."""
    job = job_of(arguments[2].split(".")[0])
    keep({**job, "walltime": arguments[1].partition("=")[2]})


def end_beside(number):
    subprocess.Popen([SELF, "end", str(number)], start_new_session=True, stdin=subprocess.DEVNULL,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip


def end(arguments):
    send(arguments[0], "TERM")
    deadline = time.monotonic() + KILL_DELAY_S
    while time.monotonic() < deadline and not (folder(arguments[0]) / "rc").exists():
        time.sleep(0.2)
    send(arguments[0], "KILL")


def shown():
    return [job for job in jobs() if job["state"] != "F" or not (FOLDER / "no_history").exists()]


def qselect(arguments):
    schedule()
    if "-x" in arguments and (FOLDER / "no_history").exists():
        sys.stderr.write("qselect: PBS is not configured to maintain job history\n")
        return 1
    name = arguments[arguments.index("-N") + 1] if "-N" in arguments else None
    for job in shown():
        if name in (None, job["name"]) and ("-x" in arguments or job["state"] != "F"):
            print(f"{job['number']}.pbs")
    return 0


def qstat(arguments):
    schedule()
    if "-Q" in arguments:
        queue = {"queue_type": "Execution", "enabled": "True", "started": "True", "kill_delay": KILL_DELAY_S,
                 "resources_max": {"walltime": "02:00:00"}, "max_run_res": {"ngpus": "[u:PBS_GENERIC=8]"},
                 "acl_user_enable": "True", "acl_users": "root@*"}  # fmt: skip
        print(json.dumps({"pbs_version": "23.06.06", "Queue": {"workq": queue}}))
    elif "-B" in arguments:
        print(json.dumps({"Server": {"pbs": {"server_state": "Active", "default_queue": "workq"}}}))
    else:
        return tell_jobs(arguments)
    return 0


def tell_jobs(arguments):
    """In the form of `-F dsv`, whatever was asked for."""
    code, delimiter = 0, arguments[arguments.index("-D") + 1] if "-D" in arguments else "|"
    for name in [word for word in arguments if re.fullmatch(r"\d+\.pbs", word)]:
        job = next((job for job in shown() if f"{job['number']}.pbs" == name), None)
        if job is None or (job["state"] == "F" and "-x" not in arguments):
            text = f"Unknown Job Id {name}" if job is None else f"{name} Job has finished, use -x or -H"
            sys.stderr.write(f"qstat: {text}\n")
            code = 153 if job is None else 35
            continue
        begun = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(job["begun"])) if "begun" in job else None
        told = {"Job_Name": job["name"], "job_state": job["state"], "comment": job["comment"],
                "Resource_List.nodect": job["nodes"], "Resource_List.walltime": job["walltime"],
                **({"stime": begun} if begun else {}),
                **({"Exit_status": job["rc"]} if "rc" in job else {})}  # fmt: skip
        print(f"Job Id: {name}", *(f"{key}={value}" for key, value in told.items()), sep=delimiter)
    return code


def pbsnodes(_arguments):
    schedule()
    has = {"mem": "8000000kb", "ncpus": 4, "ngpus": 4, "gpu_model": "v100"}
    known = {}
    for name in NODES:
        parts = [job["parts"] for job in jobs() if job["state"] == "R" and name in job["hosts"]]
        used = {kind: sum(int(part.get(kind, 0)) for part in parts) for kind in ("ncpus", "ngpus")}
        state = "job-busy" if used["ncpus"] >= has["ncpus"] else "free"
        known[name] = {"state": state, "resources_available": has, "resources_assigned": used}
    print(json.dumps({"nodes": known}))


def main():
    name, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
    if name == "pbs_stand_in":
        name, arguments = arguments[0], arguments[1:]
    named = {one.__name__: one for one in (qsub, qdel, qalter, qselect, qstat, pbsnodes, pbsdsh, mom, task, end)}
    return named[name](arguments) or 0


if __name__ == "__main__":
    sys.exit(main())
