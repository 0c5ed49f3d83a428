"""What `import fedss` gives: typed, silent functions, one module per noun.  Nothing here talks to a terminal."""
