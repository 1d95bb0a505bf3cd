# What stands before a container's first process: the container's view of the disk, from an image and what was changed.
#   $1  folder of the disk: upper/, work/, root/ and the document start.json
#   $2  host name
#   $3  a volume's folder, or nothing
#   $4  where it is mounted
#   $5  the program that becomes the first process, and $6 the one that runs it
#   …   folders that the tests' Python needs, mounted where the container would not see them
set -eu
cd "$1"
hostname "$2"
volume=$3
at=$4
enter=$5
python=$6
shift 6

mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root
mount -t proc proc root/proc
mount -t sysfs -o ro sysfs root/sys
mount --bind /dev root/dev
mount -o remount,bind,ro root/dev # devices can be written to, and no mode of this machine's is changed
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts root/dev/pts
mount -t tmpfs tmpfs root/dev/shm
if [ -n "$volume" ]; then
    mkdir -p "root$at"
    mount --bind "$volume" "root$at"
fi
for needed; do
    [ -e "root$needed/bin" ] && continue
    mkdir -p "root$needed"
    mount --bind -o ro "$needed" "root$needed"
done

read -r pid _ </proc/self/stat # the number that the machine knows this process by
echo "$pid"
exec "$python" -I -S "$enter" start.json
