"""What a machine of Vast.ai runs once its sshd is there (`onstart`), and how it ends itself: POSIX sh.

Vast.ai's own first process stands before it: it starts sshd with a host key that nobody knows, and shows it until this
script has put ours in its place. Our login key comes by it, too, and is kept there: who only learns from a list that a
machine was made can log in to it.
"""

from __future__ import annotations

import shlex

from gpuops.core.errors import Rejected
from provisioners.kit import boot_watch

LOGIN = "GPUOPS_LOGIN"
"""The variable with the public half of our key."""
MAX_CHARS = 4048
"""Vast.ai takes no longer `onstart`."""

DESTROY = r"""
told() {
    cat /proc/1/environ "/proc/$(cat /run/gpuops/pid)/environ" 2>/dev/null |
        tr '\0' '\n' | sed -n "s/^$1=//p" | head -n 1
}
key=${CONTAINER_API_KEY:-$(told CONTAINER_API_KEY)}
url=$1/api/v0/instances/${CONTAINER_ID:-$(told CONTAINER_ID)}/
ask() {
    printf 'header = "Authorization: Bearer %s"\n' "$key" |
        curl -q -K - -s -m 20 -A gpuops -X "$1" -H 'Content-Type: application/json' -d "$2" "$url" ||
    printf %s "$key" | python3 -I -c 'import sys, urllib.request as u
head = {"Authorization": "Bearer " + sys.stdin.read(), "Content-Type": "application/json", "User-Agent": "gpuops"}
print(u.urlopen(u.Request(sys.argv[3], sys.argv[2].encode(), head, method=sys.argv[1]), timeout=20).read())' "$@" "$url"
    sleep 4
}
ask DELETE '{}'
ask PUT '{"state":"stopped"}'
exit 1
"""
"""By the key that Vast.ai gives each machine for itself; `$1`: the API's address. A stop ends the bill for the GPUs
where the end is refused. Who is still here is not gone, so that it never ends with 0, and is run again."""

SCRIPT = r"""
umask 077
touch ~/.no_auto_tmux
destroy=@DESTROY@
end_machine() { sh -c "$destroy" gpuops @API@; }
login=$GPUOPS_LOGIN
unset GPUOPS_LOGIN

@WATCH@
# sshd takes another host key by a SIGHUP, which it knows once it has written its number down.
is_sshd() { [ "$(cat "/proc/$1/comm" 2>/dev/null)" = sshd ]; }
for try in 1 2 3 4 5 6 7 8 9; do
    pid=$(cat /run/sshd.pid 2>/dev/null)
    is_sshd "${pid:-0}" && kill -HUP "$pid" && break
    sleep 1
done

keys=@ROOT@/root/.ssh/authorized_keys
mkdir -p "${keys%/*}"
while :; do
    grep -qxF -- "$login" "$keys" 2>/dev/null || printf '%s\n' "$login" >>"$keys"
    sleep 20
done </dev/null >/dev/null 2>&1 &
"""


def build_script(
    api: str,
    *,
    root: str = "",
    look_s: float = boot_watch.CHECK_INTERVAL_S,
    again_s: float = boot_watch.END_RETRY_S,
) -> str:
    """The text of `onstart`. `root` stands before every path that is written, and the times are, for tests."""
    values = {"API": shlex.quote(api), "DESTROY": shlex.quote(DESTROY.strip("\n"))}
    text = boot_watch.fill(SCRIPT, values, root=root, look_s=look_s, again_s=again_s)
    if len(text) > MAX_CHARS:
        raise Rejected(f"the address of the API, {api}, is too long", "unset VAST_URL")
    return text
