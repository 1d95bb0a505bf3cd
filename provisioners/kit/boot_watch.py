"""The dead-man of a container that its provider starts with a command of ours: POSIX sh, for dash, bash and busybox.

    /run/gpuops/{end,pid,revive}   it ends the machine at the time in `end`, and starts the node anew
    the host key                   the one that came with the machine, unless it has been replaced since

A provider's own script stands before it and after it, and brings the function `end_machine`.
"""

from __future__ import annotations

import re

from provisioners.kit.keys import KeyPair

FOLDER = "/run/gpuops"
# Variables of the container's environment.
END = "GPUOPS_END"
HOST_KEY, HOST_PUBLIC = "GPUOPS_HOST_KEY", "GPUOPS_HOST_PUBLIC"
TOKEN = "GPUOPS_TOKEN"
CHECK_INTERVAL_S = 5
END_RETRY_S = 20
"""From one try of `end_machine` to the next: an account may ask 60 times in a minute."""
REVIVE_ROUNDS = 6
COMMENT = re.compile(r"^ *#[^!].*\n", re.MULTILINE)

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
first_end=$GPUOPS_END
unset GPUOPS_HOST_KEY GPUOPS_HOST_PUBLIC GPUOPS_END GPUOPS_TOKEN GPUOPS_START

watch_over "$first_end" </dev/null >"$watch/log" 2>&1 &
printf '%s\n' "$!" >"$watch/pid"
"""


def variables(boot_deadline: float, token: str, host: KeyPair) -> dict[str, str]:
    """What a container's environment holds for it. `boot_deadline`: absolute UTC seconds."""
    return {HOST_KEY: host.packed, HOST_PUBLIC: host.public, END: str(int(boot_deadline)), TOKEN: token}


def fill(script: str, values: dict[str, str], *, root: str, look_s: float, again_s: float) -> str:
    """A provider's script without its comments: `@WATCH@` in it stands for all of this, `@NAME@` for a value.

    root   stands before every path that is written; it and the times are for tests
    """
    times = {"LOOK": f"{look_s:g}", "AGAIN": f"{again_s:g}", "ROUNDS": str(REVIVE_ROUNDS)}
    text = script.replace("@WATCH@", WATCH)
    for name, value in {"ROOT": root, **times, **values}.items():
        text = text.replace(f"@{name}@", value)
    return COMMENT.sub("", text).strip("\n") + "\n"
