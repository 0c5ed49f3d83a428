"""Devices that run the exported client: this host, emulated ARM64, phones over adb; and what they measure."""
