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


def write(job: ExportJob) -> str:
    documents = [[*_comments(job), *_job(job)]]
    if job.nodes > 1:
        documents.append(_service(job))
    return "---\n".join(shell.join(lines) for lines in documents)


def text(value: str) -> str:
    """A string for YAML; those of JSON are. Characters that JSON alone takes raw were refused before."""
    return json.dumps(value, ensure_ascii=False)


def _comments(job: ExportJob) -> list[str]:
    lines = [
        f"# {job.shown}: {job.size}.",
        "# kubectl apply -f FILE. A second time: kubectl delete -f FILE first, a Job cannot be started again.",
        "# The image must hold the program, at the path given below from its working folder on, or a volume must.",
        "# What the program writes is gone with its pod, unless a volume is mounted there.",
    ]
    for name in job.request.secrets:
        lines += [
            f"# Beforehand, for {name}:  printf '%s' \"${name}\" |",
            f"#     kubectl create secret generic {secret_name(name)} --from-file={name}=/dev/stdin{_namespace(job)}",
        ]
    return lines


def secret_name(variable: str) -> str:
    """The Secret of a variable: `HF_TOKEN` is in `hf-token`."""
    return variable.lower().replace("_", "-").strip("-") or "secret"


def _namespace(job: ExportJob) -> str:
    return f" --namespace={job.options.namespace}" if job.options.namespace else ""


def _metadata(job: ExportJob) -> list[str]:
    where = [f"  namespace: {text(job.options.namespace)}"] if job.options.namespace else []
    return ["metadata:", f"  name: {text(job.name)}", *where]


def _service(job: ExportJob) -> list[str]:
    return [
        "# Headless: it only gives each pod a name.",
        "apiVersion: v1",
        "kind: Service",
        *_metadata(job),
        "spec:",
        "  clusterIP: None",
        "  publishNotReadyAddresses: true  # pods look for each other before they are ready",
        "  selector:",
        f"    job-name: {text(job.name)}  # Kubernetes gives a Job's pods this label",
    ]


def _job(job: ExportJob) -> list[str]:
    return [
        "apiVersion: batch/v1",
        "kind: Job",
        *_metadata(job),
        "spec:",
        "  completionMode: Indexed  # each pod gets a number of its own, JOB_COMPLETION_INDEX",
        f"  completions: {job.nodes}",
        f"  parallelism: {job.nodes}",
        "  backoffLimit: 0  # a pod started anew would not be let into a world that has formed",
        *([f"  activeDeadlineSeconds: {job.time_s}"] if job.options.time else []),
        "  template:",
        "    spec:",
        *([f"      subdomain: {text(job.name)}"] if job.nodes > 1 else []),
        "      restartPolicy: Never",
        "      containers:",
        "        - name: train",
        f"          image: {text(job.options.image or '')}",
        '          command: ["bash", "-c"]',
        "          args:",
        "            - |",
        *_block(shell.join(_script(job)), "              "),
        "          env:",
        *_environment(job),
        "          resources:",
        "            limits:",
        f"              nvidia.com/gpu: {text(str(job.ranks))}",
        "            requests:",
        f"              cpu: {text(str(job.cpus))}",
        *([f"              memory: {text(f'{job.options.mem}Gi')}"] if job.options.mem else []),
        "          volumeMounts:",
        "            - name: shm",
        "              mountPath: /dev/shm",
        "      volumes:",
        "        - name: shm  # NCCL and data loaders need more than the 64 MB that a container has",
        "          emptyDir:",
        "            medium: Memory",
    ]


def _script(job: ExportJob) -> list[str]:
    head = f"{job.name}-0.{job.name}" if job.nodes > 1 else "127.0.0.1"
    node = "$JOB_COMPLETION_INDEX"
    torchrun = shell.torchrun_line(
        job, node=node, head=head, port=str(PORT), run=job.name, join_timeout_s=JOIN_TIMEOUT_S
    )
    return [
        *shell.scrub_lines(),
        *shell.prelude_lines(job),
        *shell.interface_function(job),
        *shell.interface_lines(job, '"$POD_IP"'),
        f"exec {torchrun}",
    ]


def _block(script: str, indent: str) -> list[str]:
    """A script as the lines of a block; the kubelet must find no variable of its own in it."""
    return [indent + line if line else "" for line in escape(script).rstrip("\n").split("\n")]


def escape(script: str) -> str:
    """What the kubelet turns back into the script."""
    return EXPANDED.sub(lambda dollars: dollars[0] * 2, script)


def _environment(job: ExportJob) -> list[str]:
    lines = []
    for name, value in shell.constants(job).items():
        lines += [f"            - name: {name}", f"              value: {text(escape(value))}"]
    for name in job.request.secrets:
        lines += [
            f"            - name: {name}",
            "              valueFrom:",
            "                secretKeyRef:",
            f"                  name: {text(secret_name(name))}",
            f"                  key: {name}",
        ]
    if job.nodes > 1:
        lines += [
            "            - name: POD_IP",
            "              valueFrom:",
            "                fieldRef:",
            "                  fieldPath: status.podIP",
        ]
    return lines
