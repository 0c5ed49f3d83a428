"""How messages reach the clients: in this process, or in others."""
