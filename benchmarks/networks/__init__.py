"""The networks that `benchmarks.zoo` exports: the list, and those that no package has."""
