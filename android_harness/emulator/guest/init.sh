#!/bin/sh
# Second program of the emulated phone, on its disk: make it look like a phone to a shell user, then become adbd.
export PATH=/bin LD_LIBRARY_PATH= ANDROID_DATA=/data ANDROID_ROOT=/system
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=666,ptmxmode=666 devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
hostname localhost
echo 0 > /proc/sys/kernel/dmesg_restrict      # the harness reads there who was killed for memory
echo 1 > /proc/sys/vm/overcommit_memory       # as Android: memory is refused by killing, not by malloc
# A program that is almost too large is killed: else it crawls, its code read from disk again and again.
echo y > /sys/kernel/mm/lru_gen/enabled
echo 100 > /sys/kernel/mm/lru_gen/min_ttl_ms  # what was used in the last tenth of a second is not evicted
chown 2000:2000 /data/local/tmp
chmod 771 /data/local/tmp
ifconfig lo 127.0.0.1
ifconfig eth0 10.0.2.15 netmask 255.255.255.0
echo -1000 > /proc/self/oom_score_adj         # adbd outlives every command; it gives the exemption up for them
exec /bin/adbd > /dev/console 2>&1 < /dev/null
