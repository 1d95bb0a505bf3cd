"""What a pod does first, before its image's own start: POSIX sh, for dash, bash and busybox alike.

    the watchdog, the host key    as every container of a provider has them (`kit.boot_watch`)
    sshd                          the image's own /start.sh where that brings one, else installed here and started

The script travels in the variable GPUOPS_START, so that nothing between here and the pod has to keep its quotes.
"""

from __future__ import annotations

import json
import shlex

from provisioners.kit import boot_watch
from provisioners.runpod.self_destruct import ROUND_TIMEOUT_S, SOURCE

ENTRYPOINT, COMMAND = ("sh", "-c"), ('eval "$GPUOPS_START"',)
ARGS = json.dumps({"entrypoint": ENTRYPOINT, "cmd": COMMAND})
"""The pod's `args`: words, or this JSON, which replaces an ENTRYPOINT of the image, too. dstack and runpodctl send it;
not seen live by us."""
VARIABLE = "GPUOPS_START"
SETTLE_S = 4
"""From a yes until the next way is tried."""

SCRIPT = r"""
umask 077
api=@API@
ending=@ENDING@

limited() {
    if command -v timeout >/dev/null 2>&1; then timeout -s KILL @ROUND@ "$@"; else "$@"; fi
}

# curl has the key by its standard input.
ask() {
    code=$(printf 'header = "Authorization: Bearer %s"\n' "$RUNPOD_API_KEY" |
        curl -q -K - -s -m 20 -A gpuops -o /dev/null -w '%{http_code}' -X "$1" \
            -H 'Content-Type: application/json' ${3:+-d "$3"} "$2" 2>/dev/null)
    echo "gpuops: $1 $2 RunPod answers $code"
    case $code in 2??) sleep @SETTLE@ ;; esac
}

# All ways, whatever they answer and whatever they end with: who is still here is not gone. The ways are those of the
# program, then the same by curl, then what RunPod puts into its pods.
end_machine() {
    command -v python3 >/dev/null 2>&1 && limited python3 -I -c "$ending" "$api"
    if command -v curl >/dev/null 2>&1; then
        pod=$api/pods/$RUNPOD_POD_ID
        ask POST "$pod/action" '{"action":"terminate"}'
        ask DELETE "$pod"
        ask POST "${api%/*}/graphql" \
            "{\"query\":\"mutation { podTerminate(input: {podId: \\\"$RUNPOD_POD_ID\\\"}) }\"}"
        ask POST "$pod/action" '{"action":"stop"}'
    fi
    if command -v runpodctl >/dev/null 2>&1; then
        limited runpodctl remove pod "$RUNPOD_POD_ID"
        limited runpodctl pod delete "$RUNPOD_POD_ID"
    fi
}

@WATCH@
# A shell stays the container's first process, which alone survives `kill -9 -1` by a program in it. It ends with what
# it waits for, RunPod starts the container again, and with it the watchdog. Not the other way round, with the image's
# start in the background: what is there ignores SIGINT (POSIX), and so would all that is ever started in the pod.
run_to_its_end() {
    exec sh -c '"$@"; exit' gpuops "$@"  # once more, so that the environment holds no secret
}

start=@ROOT@/start.sh
if [ -f "$start" ] && grep -Eq 'PUBLIC_KEY|sshd|service ssh' "$start"; then
    umask 022
    [ -x "$start" ] && run_to_its_end "$start"
    run_to_its_end bash "$start"
fi

# An image that knows nothing of RunPod.
server() { command -v sshd 2>/dev/null || { [ -x @ROOT@/usr/sbin/sshd ] && echo @ROOT@/usr/sbin/sshd; }; }
has_all() { server >/dev/null && command -v python3 >/dev/null 2>&1; }
install_all() {
    if command -v apt-get >/dev/null 2>&1; then
        policy=@ROOT@/usr/sbin/policy-rc.d
        [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy && ours=1; }
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq && apt-get install -y -qq --no-install-recommends openssh-server python3 ca-certificates
        done=$?
        [ -z "$ours" ] || rm -f $policy
        return $done
    elif command -v apk >/dev/null 2>&1; then
        apk add --no-cache openssh python3 ca-certificates
    else
        for tool in dnf microdnf yum; do
            command -v $tool >/dev/null 2>&1 || continue
            $tool install -y openssh-server python3 ca-certificates
            return
        done
        echo 'there is no apt-get, apk or dnf here'
        return 1
    fi
}
umask 022
until has_all; do
    echo 'gpuops: this image has no sshd or no python3: installing them'
    install_all && has_all && break
    echo 'gpuops: openssh-server and python3 cannot be installed here: use an image that has them'
    sleep 20
done

home=$(sed -n 's/^root:[^:]*:[^:]*:[^:]*:[^:]*:\([^:]*\):.*/\1/p' @ROOT@/etc/passwd)
home=@ROOT@${home:-/root}
mkdir -p "$home/.ssh" @ROOT@/run/sshd && chmod 700 "$home/.ssh"
grep -qxF -- "$PUBLIC_KEY" "$home/.ssh/authorized_keys" 2>/dev/null ||
    printf '%s\n' "$PUBLIC_KEY" >>"$home/.ssh/authorized_keys"
chmod 600 "$home/.ssh/authorized_keys"
sed -i 's/^root:!/root:*/' @ROOT@/etc/shadow 2>/dev/null  # nobody may log in to an account that is locked
run_to_its_end "$(server)" -D -e \
    -o PermitRootLogin=prohibit-password -o PasswordAuthentication=no -o PubkeyAuthentication=yes
"""


def build_script(
    api: str,
    *,
    root: str = "",
    look_s: float = boot_watch.CHECK_INTERVAL_S,
    again_s: float = boot_watch.END_RETRY_S,
    round_s: float = ROUND_TIMEOUT_S,
) -> str:
    """The text of GPUOPS_START. `root` stands before every path that is written, and the times are, for tests."""
    values = {
        "API": shlex.quote(api),
        "ENDING": shlex.quote(SOURCE.strip("\n")),
        "SETTLE": f"{min(SETTLE_S, again_s):g}",
        "ROUND": f"{round_s:g}",
    }
    return boot_watch.fill(SCRIPT, values, root=root, look_s=look_s, again_s=again_s)
