"""Devices behind one protocol: this host, qemu's user mode, whatever adb reaches."""
