# First process of an instance until its system takes over: a group of processes of its own, the instance's view of its
# disk, and then systemd, once a line on stdin says that the network is there.
#   $1  folder of the disk: upper/, work/, root/, groups/ and the file boot_id
#   $2  host name
#   $3  the group's name, below the one of whoever starts this
#   …   folders that the tests' Python needs, mounted where the instance would not see them
set -eu
cd "$1"
hostname "$2"
group=$3
shift 3

mount -t cgroup2 cgroup2 groups
group=groups$(sed -n 's/^0:://p' /proc/self/cgroup)/$group
mkdir -p "$group"
echo 0 >"$group/cgroup.procs"
umount groups

mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root
mount -t proc proc root/proc
mount --bind root/proc/sys root/proc/sys
mount -o remount,bind,ro root/proc/sys # it is the whole machine's
mount --bind boot_id root/proc/sys/kernel/random/boot_id
mount -t sysfs -o ro sysfs root/sys
mount -t tmpfs -o mode=755 tmpfs root/dev # without the machine's console and its kernel's log
for device in null zero full random urandom tty; do
    : >"root/dev/$device"
    mount --bind "/dev/$device" "root/dev/$device"
    mount -o remount,bind,ro "root/dev/$device" # it can be written to, and this machine's keeps its mode
done
for device in /dev/nvidia*; do
    [ -c "$device" ] || continue
    : >"root$device"
    mount --bind "$device" "root$device"
done
mkdir root/dev/pts root/dev/shm
ln -s pts/ptmx root/dev/ptmx
ln -s /proc/self/fd root/dev/fd
ln -s /proc/self/fd/0 root/dev/stdin
ln -s /proc/self/fd/1 root/dev/stdout
ln -s /proc/self/fd/2 root/dev/stderr
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts root/dev/pts
mount -t tmpfs tmpfs root/dev/shm
mount -t tmpfs tmpfs root/tmp
mount -t tmpfs -o mode=755 tmpfs root/run
for needed; do
    [ -e "root$needed/bin" ] && continue
    mkdir -p "root$needed"
    mount --bind -o ro "$needed" "root$needed"
done

read -r pid _ </proc/self/stat # the number that the machine knows this process by
echo "$pid"
read -r _
# shellcheck disable=SC2016
exec unshare --cgroup bash -c '
    mount -t cgroup2 cgroup2 root/sys/fs/cgroup
    exec env -i container=lab PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        chroot root /lib/systemd/systemd --system </dev/null >/dev/null 2>&1'
