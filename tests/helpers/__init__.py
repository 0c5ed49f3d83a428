"""What several tests need: small artifacts, federations and programs."""
