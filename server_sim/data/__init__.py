"""Labelled examples on disk, split among clients."""
