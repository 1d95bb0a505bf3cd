"""What a container runs first that its provider starts with a command of ours: POSIX sh, for dash, bash and busybox.

/run/gpuops/{end,pid,revive}   it ends the machine at the time in `end`, and starts the node anew
the host key                   the one that came with the machine, unless it has been replaced since
the end                        by the provider's REST API, with the key that the provider gives the container
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from gpuops.core.errors import Rejected
from gpuops.core.models import Resource
from provisioners.kit.keys import KeyPair

FOLDER = "/run/gpuops"
# Variables of the container's environment.
END = "GPUOPS_END"
HOST_KEY, HOST_PUBLIC = "GPUOPS_HOST_KEY", "GPUOPS_HOST_PUBLIC"
TOKEN = "GPUOPS_TOKEN"
LOGIN = "GPUOPS_LOGIN"
CHECK_INTERVAL_S = 5
END_RETRY_S = 20
"""From one try of `end_machine` to the next: an account may ask 60 times in a minute."""
REVIVE_ROUNDS = 6
SETTLE_S = 4
"""From one way to end the machine to the next: what is said yes to takes a moment."""
COMMENT = re.compile(r"^ *#[^!].*\n", re.MULTILINE)

END_PROGRAM = r"""
# The variables of the first process, else of the watchdog: an sshd that is first writes its title over them.
told() {
    cat /proc/1/environ "/proc/$(cat /run/gpuops/pid)/environ" 2>/dev/null | tr '\0' '\n' | sed -n "/^$1=/{s///p;q;}"
}
api=$1 python=$2 key=$(told @KEY@) id=$(told @ID@)
key=${key:-$@KEY@} id=${id:-$@ID@}
[ "$key" ] && [ "$id" ] || { echo "gpuops: there is no @KEY@ here" >&2; exit 1; }
limited() {
    if command -v timeout >/dev/null 2>&1; then timeout -s KILL 10 "$@"; else "$@"; fi
}
# The key is no argument of a program, and no redirect gets it.
fetch() {
    printf 'header = "Authorization: Bearer %s"\n' "$key" |
        curl -q -K - -s -m 10 -A gpuops -X "$1" -H 'Content-Type: application/json' ${3:+-d "$3"} "$2" ||
    printf %s "$key" | limited "$python" -I -c 'import sys, urllib.request as u
class Stay(u.HTTPRedirectHandler):
    def redirect_request(*_): pass
method, url, *body = sys.argv[1:]
head = {"Authorization": "Bearer " + sys.stdin.read(), "Content-Type": "application/json", "User-Agent": "gpuops"}
asked = u.Request(url, "".join(body).encode() or None, head, method=method)
print(u.build_opener(Stay).open(asked, timeout=10).read().decode())' "$@"
}
ask() {
    echo "gpuops: $1 $2"
    fetch "$@"
    sleep @SETTLE@
}
@WAYS@
exit 1
"""
"""All ways, whatever they answer: who is still here is not gone. So it never ends with 0, and whoever started it
starts it again. `$1`: the API's address; `$2`: a Python. One round is done in the time that a node's watchdog gives it
(150 s), unless every single way hangs."""

WATCH = r"""
watch=@ROOT@/run/gpuops
ssh=@ROOT@/etc/ssh
mkdir -p "$watch" && chmod 700 "$watch"

# Seconds that have passed since some moment, whatever becomes of the clock.
passed() {
    read -r up _ </proc/uptime 2>/dev/null && printf '%s' "${up%%.*}"
}

# What was last read counts while the file cannot be: a full disk keeps no machine alive. A clock that is set back does
# not, either: the seconds to an end are counted as well from when it was read first.
watch_over() {
    last=$1 rounds=0 reviving= counted=none due=
    while :; do
        pause=@LOOK@
        end=$(cat "$watch/end" 2>/dev/null)
        end=${end%%.*}
        case $end in
            none) last=none ;;
            '' | *[!0-9]* | 0?*) ;;
            *) last=$end ;;
        esac
        now=$(date +%s) up=$(passed)
        [ "$last" = "$counted" ] || [ "$last" = none ] || due=$((${up:-0} + last - ${now:-0}))
        counted=$last
        if [ "$last" != none ] && { [ "$now" -ge "$last" ] || [ "${up:-0}" -ge "$due" ]; }; then
            end_machine
            pause=@AGAIN@
        elif [ -f "$watch/revive" ] && [ $((rounds % @ROUNDS@)) -eq 0 ]; then
            if [ -z "$reviving" ] || ! kill -0 "$reviving" 2>/dev/null; then
                sh "$watch/revive" </dev/null >/dev/null 2>&1 &
                reviving=$!
            fi
        fi
        rounds=$((rounds + 1))
        sleep "$pause"
    done
}

# A container that starts again keeps the end it had.
case $GPUOPS_END in '' | *[!0-9]*) GPUOPS_END=none ;; esac
[ -s "$watch/end" ] || { printf '%s\n' "$GPUOPS_END" >"$watch/end.draft" && mv -f "$watch/end.draft" "$watch/end"; }

unpacked() {
    printf '%s' "$1" | base64 -d 2>/dev/null || printf '%s' "$1" | openssl base64 -d -A 2>/dev/null ||
        printf '%s' "$1" | python3 -c 'import base64, sys; print(base64.b64decode(sys.stdin.read()).decode(), end="")'
}

if [ -n "$GPUOPS_HOST_KEY" ] && [ ! -e "$ssh/.gpuops-replaced" ]; then
    [ -d "$ssh" ] || { mkdir -p "$ssh" && chmod 755 "$ssh"; }
    key=$ssh/ssh_host_ed25519_key
    unpacked "$GPUOPS_HOST_KEY" >"$ssh/.gpuops-draft" && chmod 600 "$ssh/.gpuops-draft" &&
        printf '%s\n' "$GPUOPS_HOST_PUBLIC" >"$key.pub" && chmod 644 "$key.pub" && mv -f "$ssh/.gpuops-draft" "$key"
fi
first_end=$GPUOPS_END login=$GPUOPS_LOGIN
unset GPUOPS_HOST_KEY GPUOPS_HOST_PUBLIC GPUOPS_END GPUOPS_TOKEN GPUOPS_START GPUOPS_LOGIN

# Our login, in the home of whom it is for.
let_in() {
    mkdir -p "$1/.ssh" && chmod 700 "$1/.ssh"
    keys=$1/.ssh/authorized_keys
    grep -qxF -- "$login" "$keys" 2>/dev/null || printf '%s\n' "$login" >>"$keys"
    chmod 600 "$keys"
}

watch_over "$first_end" </dev/null >"$watch/log" 2>&1 &
printf '%s\n' "$!" >"$watch/pid"
"""


SSHD_IS_THERE = r"""
# sshd takes another host key by a SIGHUP, which it knows once it has written its number down.
is_sshd() { [ "$(cat "/proc/$1/comm" 2>/dev/null)" = sshd ]; }
for try in 1 2 3 4 5 6 7 8 9; do
    pid=$(cat /run/sshd.pid 2>/dev/null)
    is_sshd "${pid:-0}" && kill -HUP "$pid" && break
    sleep 1
done
while :; do
    let_in @ROOT@/root
    sleep 20
done </dev/null >/dev/null 2>&1 &
"""
"""What follows where the provider's own first process starts sshd, with a host key that nobody knows, and writes the
list of logins: ours is kept in it, so that who only learns from a list that a machine was made can log in."""

SCRIPT = r"""
umask 077
@BEFORE@
end_machine() (
set -- @API@ python3
@END@
)
@WATCH@
@AFTER@
"""


@dataclass(frozen=True)
class ContainerBoot:
    """How a provider's containers boot, and end themselves."""

    key: str
    """The variable that the provider gives each container, with a key by which it may end itself;"""
    id: str
    """and the one with its own id."""
    ways: str
    """All requests that may end it, those first that are best: lines of sh, each `ask METHOD URL [BODY]`, where `$api`
    is the API's address and `$id` the container's; `fetch` prints an answer. `$3` and more: what `self_destruct` adds
    to `end_argv`."""
    before: str = ""
    """Of the script: sh that runs before all else;"""
    after: str = SSHD_IS_THERE
    """and after: an sshd. `$login` is our public key, `let_in HOME` lets it in; `@ROOT@` stands before paths that are
    written, for tests."""
    max_chars: int | None = None
    """What the provider takes."""

    def script(
        self, api: str, *, root: str = "", look_s: float = CHECK_INTERVAL_S, again_s: float = END_RETRY_S
    ) -> str:
        """The boot script. Raises Rejected where it is too long. The times are for tests, as `root`."""
        text = SCRIPT.replace("@BEFORE@", self.before).replace("@AFTER@", self.after)
        text = text.replace("@WATCH@", WATCH).replace("@END@", self._program(min(SETTLE_S, again_s)))
        times = {"LOOK": f"{look_s:g}", "AGAIN": f"{again_s:g}", "ROUNDS": str(REVIVE_ROUNDS)}
        for name, value in {"ROOT": root, **times, "API": shlex.quote(api)}.items():
            text = text.replace(f"@{name}@", value)
        text = COMMENT.sub("", text).strip("\n") + "\n"
        if self.max_chars and len(text) > self.max_chars:
            raise Rejected(f"the address of the API, {api}, is too long", "name a shorter one, or unset its variable")
        return text

    def end_argv(self, api: str, machine: Resource) -> list[str]:
        """The command by which a node ends its container, as `Provisioner.self_destruct` tells it."""
        program = COMMENT.sub("", self._program(SETTLE_S))
        return ["sh", "-c", program, "gpuops", api, str(machine.data.get("python") or "python3")]

    def _program(self, settle_s: float) -> str:
        values = {"WAYS": self.ways.strip("\n"), "KEY": self.key, "ID": self.id, "SETTLE": f"{settle_s:g}"}
        text = END_PROGRAM
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        return text.strip("\n")


def variables(boot_deadline: float, token: str, host: KeyPair, login: str) -> dict[str, str]:
    """What a container's environment holds for it. `boot_deadline`: absolute UTC seconds; `login`: our public key."""
    end = str(int(boot_deadline))
    return {HOST_KEY: host.packed, HOST_PUBLIC: host.public, END: end, TOKEN: token, LOGIN: login}
