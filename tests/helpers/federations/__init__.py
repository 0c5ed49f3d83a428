"""Rounds and whole runs in small."""
