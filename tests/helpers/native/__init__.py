"""Programs and kernels that are compiled for the tests."""
