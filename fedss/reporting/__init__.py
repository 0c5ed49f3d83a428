"""One HTML page about runs and measurements, complete in itself."""
