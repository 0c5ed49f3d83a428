"""Exported steps in small."""
