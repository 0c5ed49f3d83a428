"""Hash functions that server and clients make alike, in Python and in C++."""
