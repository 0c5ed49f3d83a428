"""What travels to a device: the client's half of a round."""
