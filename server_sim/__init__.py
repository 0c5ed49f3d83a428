"""The server's half of a federated round, simulated: slices, aggregation, data, evaluation and experiments."""
