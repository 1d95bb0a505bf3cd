# First process of a lab: its namespaces, and every host's processes, live exactly as long as this one, and this one as
# long as someone holds the other end of its stdin. $1 is the folder for the hosts' disks.
set -eu
mount -t tmpfs -o mode=755 tmpfs "$1"
ip -batch - <<END
link set lo up
link add br0 address $2 type bridge mcast_snooping 0
addr add $3 dev br0
addr add $4 dev br0 nodad
link set br0 up
END
read -r pid _ </proc/self/stat # the number that the machine knows this process by
echo "$pid"
read -r _ || :
