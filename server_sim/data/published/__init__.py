"""Data sets of the papers, read from the files that their authors publish: one data set per file."""
