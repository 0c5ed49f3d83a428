"""An open ExecuTorch program, from C++ and from Python."""
