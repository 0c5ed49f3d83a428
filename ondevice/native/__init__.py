"""The native half: C++ kernels of the training step as ExecuTorch operators, the client, and how they are built.

kernels/     the arithmetic behind one interface (kernels.h), once per instruction set; dispatch.cpp picks one at start:
             registers/ below, product/, convolution/, depthwise/, norms/, pooling/ and values/ side by side on it
operators/   the kernels as operators of the runtime: arguments checked, work shared out among threads
runtime/     an open program behind a C interface, and the same from Python
client/      `fedss-client`: a whole client in C++
fuzz/        programs that the tests compile with the sanitizers
build.py     compiles them, for this machine or for ARM64
"""
