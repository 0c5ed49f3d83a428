"""The native client: C++ without Python or torch.  `main.cpp` says what it does, `build.py` compiles it."""
