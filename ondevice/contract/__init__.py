"""The words everyone shares: nouns, messages, artifacts, random draws.  numpy only."""
