#!/bin/bash
# What an official image runs as /start.sh, as far as a login needs it.
set -e

if [ -n "$PUBLIC_KEY" ]; then
    mkdir -p ~/.ssh
    printf '%s\n' "$PUBLIC_KEY" >>~/.ssh/authorized_keys
    chmod -R 700 ~/.ssh
    for kind in rsa ecdsa ed25519; do # whoever put a key there keeps it
        [ -f "/etc/ssh/ssh_host_${kind}_key" ] && continue
        [ "$kind" = rsa ] && bits="-b 1024" || bits="" # the fewest that sshd takes: 3072 are seconds of searching
        ssh-keygen -q -t "$kind" $bits -N '' -f "/etc/ssh/ssh_host_${kind}_key"
    done
    mkdir -p /run/sshd
    /usr/sbin/sshd
    echo "sshd is started"
fi

# For interactive shells alone: a command over SSH sees nothing of it.
env | grep -E '^[A-Z_][A-Z0-9_]*=' | grep -v '^PUBLIC_KEY=' | sed -E 's/^([^=]*)=(.*)$/export \1="\2"/' >/etc/rp_environment
grep -q rp_environment ~/.bashrc 2>/dev/null || echo 'source /etc/rp_environment' >>~/.bashrc
echo "Pod is ready to use."
exec sleep infinity
