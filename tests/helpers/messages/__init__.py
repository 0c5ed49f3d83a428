"""Messages of a round, right and wrong ones."""
