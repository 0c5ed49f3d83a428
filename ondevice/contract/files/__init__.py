"""Files that appear whole, and the header of the container."""
