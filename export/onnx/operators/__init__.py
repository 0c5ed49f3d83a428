"""How an ATen operator is written in ONNX, by family, each in its fastest form."""
