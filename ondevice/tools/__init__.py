"""Processes that only step, the cache folder, versions."""
