"""The embedded data: which characters, who owns what, how they are drawn."""
