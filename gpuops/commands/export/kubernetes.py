"""`export k8s`: an indexed Job, and the headless Service by which its pods find the first one."""

from __future__ import annotations

import json
import re

from gpuops.commands.export import shell
from gpuops.commands.export.job import ExportJob

PORT = 29500
"""A pod has ports of its own: nothing else takes torchrun's usual one."""
JOIN_TIMEOUT_S = 1800
"""Pods get their machine and their image minutes apart."""
EXPANDED = re.compile(r"\$+(?=\()|\$\$+")
"""Dollars that the kubelet reads: `$(NAME)` is a variable's value there, `$$` is one dollar."""
COMMENT = """\
# {program}: {size}.
# kubectl apply -f FILE. A second time: kubectl delete -f FILE first, a Job cannot be started again.
# The image must hold the program, at the path given below from its working folder on, or a volume must.
# What the program writes is gone with its pod, unless a volume is mounted there.
"""
SECRET_COMMENT = """\
# Beforehand, for {name}:  printf '%s' "${name}" |
#     kubectl create secret generic {secret} --from-file={name}=/dev/stdin{namespace}
"""
JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
{namespace}spec:
  completionMode: Indexed  # each pod gets a number of its own, JOB_COMPLETION_INDEX
  completions: {nodes}
  parallelism: {nodes}
  backoffLimit: 0  # a pod started anew would not be let into a world that has formed
{deadline}  template:
    spec:
{subdomain}      restartPolicy: Never
      containers:
        - name: train
          image: {image}
          command: ["bash", "-c"]
          args:
            - |
{script}          env:
{env}          resources:
            limits:
              nvidia.com/gpu: {gpus}
            requests:
              cpu: {cpus}
{memory}          volumeMounts:
            - name: shm
              mountPath: /dev/shm
      volumes:
        - name: shm  # NCCL and data loaders need more than the 64 MB that a container has
          emptyDir:
            medium: Memory
"""
SERVICE = """\
---
# Headless: it only gives each pod a name.
apiVersion: v1
kind: Service
metadata:
  name: {name}
{namespace}spec:
  clusterIP: None
  publishNotReadyAddresses: true  # pods look for each other before they are ready
  selector:
    job-name: {name}  # Kubernetes gives a Job's pods this label
"""


def write(job: ExportJob) -> str:
    options, several = job.options, job.nodes > 1
    name = quote(job.name)
    namespace = f"  namespace: {quote(options.namespace)}\n" if options.namespace else ""
    document = JOB.format(
        name=name,
        namespace=namespace,
        nodes=job.nodes,
        deadline=f"  activeDeadlineSeconds: {job.time_s}\n" if options.time else "",
        subdomain=f"      subdomain: {name}\n" if several else "",
        image=quote(options.image or ""),
        script=_block(shell.join(_script(job)), "              "),
        env="".join(f"            {line}\n" for line in _environment(job)),
        gpus=quote(str(job.ranks)),
        cpus=quote(str(job.cpus)),
        memory=f"              memory: {quote(f'{options.mem}Gi')}\n" if options.mem else "",
    )
    return _comments(job) + document + (SERVICE.format(name=name, namespace=namespace) if several else "")


def quote(value: str) -> str:
    """A string for YAML; those of JSON are. Characters that JSON alone takes raw were refused before."""
    return json.dumps(value, ensure_ascii=False)


def escape(script: str) -> str:
    """What the kubelet turns back into the script."""
    return EXPANDED.sub(lambda dollars: dollars[0] * 2, script)


def secret_name(variable: str) -> str:
    """The Secret of a variable: `HF_TOKEN` is in `hf-token`."""
    return variable.lower().replace("_", "-").strip("-") or "secret"


def _comments(job: ExportJob) -> str:
    where = f" --namespace={job.options.namespace}" if job.options.namespace else ""
    secrets = [
        SECRET_COMMENT.format(name=name, secret=secret_name(name), namespace=where) for name in job.request.secrets
    ]
    return COMMENT.format(program=job.shown, size=job.size) + "".join(secrets)


def _script(job: ExportJob) -> list[str]:
    torchrun = shell.torchrun_line(
        job,
        node="$JOB_COMPLETION_INDEX",
        head=f"{job.name}-0.{job.name}" if job.nodes > 1 else "127.0.0.1",
        port=str(PORT),
        run=job.name,
        join_timeout_s=JOIN_TIMEOUT_S,
    )
    return [
        *shell.scrub_lines(),
        *shell.prelude_lines(job),
        *shell.interface_function(job),
        *shell.interface_lines(job, '"$POD_IP"'),
        f"exec {torchrun}",
    ]


def _block(script: str, indent: str) -> str:
    """A script as a block of YAML; the kubelet must find no variable of its own in it."""
    return re.sub("^(?=.)", indent, escape(script), flags=re.M)


def _environment(job: ExportJob) -> list[str]:
    lines = []
    for name, value in shell.constants(job).items():
        lines += [f"- name: {quote(name)}", f"  value: {quote(escape(value))}"]
    sources = {
        name: f"secretKeyRef: {{name: {quote(secret_name(name))}, key: {quote(name)}}}" for name in job.request.secrets
    }
    if job.nodes > 1:
        sources["POD_IP"] = "fieldRef: {fieldPath: status.podIP}"
    for name, source in sources.items():
        lines += [f"- name: {quote(name)}", "  valueFrom:", f"    {source}"]
    return lines
