"""FedSS Mobile on Flower: the same wire bytes, carried by Flower's messages."""
