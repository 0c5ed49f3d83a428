"""Federated rounds on devices: what lies there, a client's conversation, failure handling."""
