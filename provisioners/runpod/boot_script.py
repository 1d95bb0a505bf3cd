"""What a pod does first, before its image's own start, and how it ends itself: POSIX sh, for dash, bash and busybox.

    the watchdog, the host key    as every container of a provider has them (`kit.container_boot`)
    sshd                          the image's own /start.sh where that brings one, else installed here and started

The script travels in the variable GPUOPS_START, so that nothing between here and the pod has to keep its quotes.
"""

from __future__ import annotations

import json

from provisioners.kit.container_boot import ContainerBoot

ENTRYPOINT, COMMAND = ("sh", "-c"), ('eval "$GPUOPS_START"',)
ARGS = json.dumps({"entrypoint": ENTRYPOINT, "cmd": COMMAND})
"""The pod's `args`: words, or this JSON, which replaces an ENTRYPOINT of the image, too. dstack and runpodctl send it;
not seen live by us."""
VARIABLE = "GPUOPS_START"

WAYS = r"""
pod=$api/pods/$id
ask POST "$pod/action" '{"action":"terminate"}'
ask DELETE "$pod"
ask POST "${api%/*}/graphql" "{\"query\":\"mutation { podTerminate(input: {podId: \\\"$id\\\"}) }\"}"
cluster=${3:-$(fetch GET "$pod" | tr -d '\n' | sed -n 's/.*"cluster" *: *{\([^}]*\)}.*/\1/p' |
    sed -n 's/.*"id" *: *"\([^"]*\)".*/\1/p')}
[ -z "$cluster" ] || ask DELETE "$api/clusters/$cluster"
ask POST "$pod/action" '{"action":"stop"}'
if command -v runpodctl >/dev/null 2>&1; then
    limited runpodctl remove pod "$id"
    limited runpodctl pod delete "$id"
fi
"""
"""What a pod's own key may do RunPod does not say, so all ways are tried, those first that were seen to work (field
reports: `action terminate` on v2, `podTerminate` of the older interface; DELETE was seen refused). A member of a
cluster (`$3`) cannot go alone. A stop ends the bill for its GPUs; runpodctl is what RunPod puts into its pods. No
answer is success: 404 means "not accessible to the caller", too."""

SSHD = r"""
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
mkdir -p @ROOT@/run/sshd
let_in "$home"
sed -i 's/^root:!/root:*/' @ROOT@/etc/shadow 2>/dev/null  # nobody may log in to an account that is locked
run_to_its_end "$(server)" -D -e \
    -o PermitRootLogin=prohibit-password -o PasswordAuthentication=no -o PubkeyAuthentication=yes
"""

BOOT = ContainerBoot(key="RUNPOD_API_KEY", id="RUNPOD_POD_ID", ways=WAYS, after=SSHD)
