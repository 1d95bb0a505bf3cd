#!/bin/bash
# What runs first in an instance that was asked for with ssh: the login, then what its renter wants to be run.
umask 022
mkdir -p /root/.ssh /run/sshd
chmod 700 /root /root/.ssh
for kind in rsa ed25519; do
    [ -f "/etc/ssh/ssh_host_${kind}_key" ] && continue
    [ "$kind" = rsa ] && bits="-b 1024" || bits="" # the fewest that sshd takes: 3072 are seconds of searching
    ssh-keygen -q -t "$kind" $bits -N '' -f "/etc/ssh/ssh_host_${kind}_key"
done
printf 'Welcome to vast.ai. If authentication fails, try again after a few seconds.\n' >/etc/vast_banner
grep -q vast_banner /etc/ssh/sshd_config || echo 'Banner /etc/vast_banner' >>/etc/ssh/sshd_config
/usr/sbin/sshd
echo "sshd is started"
bash /root/onstart.sh
exec sleep infinity
