"""What is trained beside federated rounds."""
