"""What a machine does when it boots, before anything of ours is on it: cloud-init's document. Pure.

    bootcmd                 in every boot, before anything that may hang: arms the machine's own dead-man
    ssh_keys                the host key of its first minutes; gpuops replaces it in the first conversation
    ssh_authorized_keys     our login

The dead-man: a systemd timer reads every ten seconds `/var/lib/gpuops/end`, an absolute time in UTC seconds or `none`,
and switches the machine off at that time, or once as much uptime has passed as lay before it when it was first read: a
clock that is set back lets no machine live longer. The launch has told AWS to terminate a machine that does. The timer
needs nothing that starts later, so that it runs while cloud-init hangs, and it is enabled, so that a machine that
reboots keeps its end. It also starts the node again (`revive`), as the login's user.
"""

from __future__ import annotations

import shlex

from provisioners.kit import cloud_init
from provisioners.kit.keys import KeyPair

MAX_BYTES = 16384
"""Bytes that AWS takes."""
WATCH = "/var/lib/gpuops"
"""Where the node's own watchdog and this one meet (`boot_watch`)."""
PROGRAM = "/usr/local/lib/gpuops/end"
DUE = "/run/gpuops-due"
"""The end and the uptime (seconds) at which it comes: in memory, forgotten with the uptime itself."""
CHECK_INTERVAL_S = 10
REVIVE_ROUNDS = 3
POWEROFF_TIMEOUT_S = 60

TIMER = """\
[Unit]
Description=gpuops: looks whether the time of this machine has come
DefaultDependencies=no

[Timer]
OnCalendar=*:*:0/@LOOK@
OnUnitActiveSec=@LOOK@
AccuracySec=1s
Persistent=true
Unit=gpuops-end.service

[Install]
WantedBy=timers.target
"""
SERVICE = """\
[Unit]
Description=gpuops: ends this machine when its time has come, and looks after its node
DefaultDependencies=no
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/bin/sh @PROGRAM@
KillMode=process
TimeoutStartSec=infinity
LogLevelMax=err
"""
"""Neither waits for anything of the start, nor is it stopped where the machine stops: it sees that it does."""

END = r"""
watch=@WATCH@ user=@USER@ kept=@PROGRAM@.kept
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p "$watch"
if id -u "$user" >/dev/null 2>&1 && [ "$(stat -c %U-%a "$watch")" != "$user-700" ]; then
    chown -R "$user:" "$watch" && chmod 700 "$watch"
fi
touch "$watch/beat"

# What can be read counts; else what was read last; else what the machine was told with its birth.
end=
for file in "$watch/end" "$kept"; do
    [ -z "$end" ] || break
    end=$(cat "$file" 2>/dev/null)
    end=${end%%.*}
    case $end in
        none) ;;
        '' | *[!0-9]* | 0?*) end= ;;
    esac
done
: "${end:=@END@}"
[ "$end" = "$(cat "$kept" 2>/dev/null)" ] ||
    { printf '%s\n' "$end" >"$kept.draft" && mv -f "$kept.draft" "$kept"; } 2>/dev/null

now=$(date +%s) up= due_for= due=
read -r up _ 2>/dev/null <@UPTIME@
up=${up%%.*}
read -r due_for due 2>/dev/null <@DUE@
case $due in '' | *[!0-9]*) due_for= ;; esac
if [ "$end" != none ] && [ "$due_for" != "$end" ]; then
    due=$((${up:-0} + end - ${now:-0}))
    [ "$due" -gt 0 ] || due=0
    { printf '%s %s\n' "$end" "$due" >@DUE@.draft && mv -f @DUE@.draft @DUE@; } 2>/dev/null
fi
if [ "$end" != none ] && { [ "$now" -ge "$end" ] || [ "${up:-0}" -ge "$due" ]; }; then
    timeout @FORCE@ systemctl poweroff
    sleep @FORCE@
    timeout @FORCE@ systemctl --force poweroff
    sleep @FORCE@
    systemctl --force --force poweroff
    exit 0
fi
if [ -f "$watch/revive" ] && [ $((now / @LOOK@ % @ROUNDS@)) -eq 0 ] && id -u "$user" >/dev/null 2>&1; then
    flock -n -o /run/gpuops-revive timeout 60 setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups \
        --reset-env sh -c "$(cat "$watch/revive")" </dev/null >/dev/null 2>&1 &
fi
exit 0
"""

ARM = r"""
umask 022
mkdir -p @WATCH@ @FOLDER@
[ -s @WATCH@/end ] || { printf '%s\n' @END@ >@WATCH@/end.draft && mv -f @WATCH@/end.draft @WATCH@/end; }
id -u @USER@ >/dev/null 2>&1 || chmod 777 @WATCH@  # until its owner is there
put() {
    cat >"$1.draft" && mv -f "$1.draft" "$1"
}
put @PROGRAM@ <<'GPUOPS_TEXT'
@ENDING@GPUOPS_TEXT
put /etc/systemd/system/gpuops-end.service <<'GPUOPS_TEXT'
@SERVICE@GPUOPS_TEXT
put /etc/systemd/system/gpuops-end.timer <<'GPUOPS_TEXT'
@TIMER@GPUOPS_TEXT
systemctl daemon-reload
systemctl enable gpuops-end.timer
systemctl --no-block start gpuops-end.timer gpuops-end.service
"""


def document(*, host: KeyPair, login: str, user: str, end: float) -> str:
    """The user data of a cluster's machines. `login`: the public half of our key; `user`: who logs in, with it;
    `end`: UTC seconds, at which a machine ends itself unless it was told another time by then. Raises Rejected."""
    return cloud_init.document(
        host=host, login=login, user=user, bootcmd=[arm(user, end)], max_bytes=MAX_BYTES, who="AWS"
    )


def arm(user: str, end: float) -> str:
    """The shell of `bootcmd`: what it writes is whole or not there, and an end that stands is left as it is."""
    return _filled(ARM, user, end)


def units() -> dict[str, str]:
    """Its units, by name."""
    return {"gpuops-end.timer": _filled(TIMER, "", 0.0), "gpuops-end.service": _filled(SERVICE, "", 0.0)}


def _filled(text: str, user: str, end: float) -> str:
    values = {
        "ENDING": END.lstrip("\n"),
        "SERVICE": SERVICE,
        "TIMER": TIMER,
        "WATCH": WATCH,
        "PROGRAM": PROGRAM,
        "DUE": DUE,
        "UPTIME": "/proc/uptime",
        "FOLDER": PROGRAM.rpartition("/")[0],
        "USER": shlex.quote(user),
        "END": str(int(end)),
        "LOOK": str(CHECK_INTERVAL_S),
        "ROUNDS": str(REVIVE_ROUNDS),
        "FORCE": str(POWEROFF_TIMEOUT_S),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
