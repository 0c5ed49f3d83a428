"""The native half: C++ kernels of the training step as ExecuTorch operators, and how they are built.

kernels.h          the interface: plain pointers and sizes
vector.h           one SIMD register
activation.h       activations and their derivatives
product.cpp        matrix product: 1x1 convolutions, linear layers, their gradients
depthwise.cpp      depthwise convolution and its gradients
group_norm.cpp     GroupNorm with the activation after it, pooling, gradients
convolution.cpp    dense convolutions as matrix products
max_pool.cpp       max-pooling and its gradient
kernel_table.cpp   the kernels of one instruction set
dispatch.cpp       picks the instruction set when the process starts
operator_call.h    one call of an operator by the runtime: arguments, outputs
work_sharing.h     a kernel's work shared out among threads
*_operators.cpp    the kernels as operators of the runtime: products, convolutions, what works on planes
program.cpp        an open program behind a C interface (program.h)
profiler.h         processor time of every instruction
program.py         the same from Python
build.py           compiles them, for this machine or for ARM64
"""
