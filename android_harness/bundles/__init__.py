"""Clients for devices in self-contained folders, and where their parts come from."""
