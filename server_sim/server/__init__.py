"""The server's state and its arithmetic: tables, optimizers, aggregation."""
