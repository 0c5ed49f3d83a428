"""What the messages of a round are made of, read without trusting it."""
