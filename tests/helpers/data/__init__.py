"""Populations in small, and files in the published formats."""
