"""What a run leaves on disk, and many runs together."""
