"""The loops of `row_loop.py` and `sum_loop.py` in C++: the same bytes, at the speed of memory."""
