#!/bin/busybox sh
# First program of the emulated phone, in the initial RAM disk: load the drivers of the virtual disk and network,
# which Debian's kernel has as modules, and go on from the disk.  The RAM disk is freed by switch_root, so that
# what the phone was given as memory is there for the client.
export PATH=/bin
for driver in /drivers/*.ko; do  # named in the order in which they need each other
  busybox insmod $driver
done
busybox mount -t devtmpfs dev /dev
busybox mount -t ext4 -o noatime /dev/vda /disk
busybox mount -o move /dev /disk/dev
exec busybox switch_root /disk /init
