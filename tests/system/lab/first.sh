# First process of a host: makes the host's view of the disk, then starts an sshd for every line on its stdin and reaps
# whatever is left to it. The host ends with it.
#   $1  folder of the host's disk: upper/, work/, root/ and the files hosts, boot_id
#   $2  folder that becomes /root
#   $3  host name
#   …   folders that the tests' Python needs, mounted where the host would not see them
set -eu
cd "$1"
home=$2
hostname "$3"
shift 3

mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root
mount -t proc proc root/proc
mount --bind boot_id root/proc/sys/kernel/random/boot_id
mount -t sysfs -o ro sysfs root/sys
mount --bind /dev root/dev
mount -o remount,bind,ro root/dev # devices can be written to, and no mode of this machine's is changed
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts root/dev/pts
mount -t tmpfs tmpfs root/dev/shm
mount -t tmpfs tmpfs root/tmp
mount -t tmpfs -o mode=755 tmpfs root/run
mkdir root/run/sshd
mount --bind "$home" root/root
mount --bind hosts root/etc/hosts
for needed; do
    [ -e "root$needed/bin" ] && continue
    mkdir -p "root$needed"
    mount --bind -o ro "$needed" "root$needed"
done

read -r pid _ </proc/self/stat # the number that the machine knows this process by
cd root
pivot_root . . # not chroot alone: who enters this namespace must find the host's root, as a container's runtime does
umount -l .
echo "$pid"
# shellcheck disable=SC2016
exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot . /bin/bash -c '
    while read -r _; do
        /usr/sbin/sshd -D -f /etc/ssh/lab_config -E /var/log/sshd.log </dev/null >/dev/null 2>&1 &
    done'
