# Removes the groups of processes that instances had, once whoever started this is gone: nothing else does, and they would
# stay. $1 is their name, below the group that this runs in. Runs in a mount namespace of its own.
set -eu
read -r _ || :
mount -t cgroup2 cgroup2 /sys/fs/cgroup
all=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/$1
tries=0
while [ -d "$all" ] && [ $tries -lt 600 ]; do
    find "$all" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1 # what lived there is still ending
    tries=$((tries + 1))
done
