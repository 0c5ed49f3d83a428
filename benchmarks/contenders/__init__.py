"""The contenders of `benchmarks/race.py`: programs that do one round of work whenever they are told to.

Each is a process in an environment of its own."""
