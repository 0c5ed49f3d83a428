"""Which operators of ours an ATen operator becomes, by family."""
