"""What tables in the docs must say, from the committed rows."""
