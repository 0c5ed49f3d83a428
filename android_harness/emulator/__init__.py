"""Emulated ARM64 phones: what they boot from, their power, which there are."""
