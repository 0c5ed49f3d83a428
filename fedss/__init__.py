"""The command line over the four packages, one module a verb.  The only package that imports the other four."""
