"""What an artifact directory says of itself."""
