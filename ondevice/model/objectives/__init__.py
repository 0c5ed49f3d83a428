"""The losses: the one place for their mathematics."""
